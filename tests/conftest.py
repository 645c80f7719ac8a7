"""What every test can ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway import GatewayProcess, running
from tests.support.loopback import pytest_runtest_call, pytest_runtest_setup, pytest_runtest_teardown
from tests.support.postgres import postgres_server, postgres_url

__all__ = [
    "gateway",
    "home",
    "postgres_server",
    "postgres_url",
    "pytest_runtest_call",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
]

for name in [n for n in os.environ if n.startswith("COTERIE_") or n.endswith("_API_KEY")]:
    del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest come first: a worker that begins one of them last leaves the others with nothing to do."""
    items.sort(key=lambda item: "chaos" not in item.path.parts)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder that does not exist yet."""
    return tmp_path / "home"


@pytest.fixture
def gateway(home: Path) -> Iterator[GatewayProcess]:
    """A running gateway on a fresh home."""
    with running(home) as process:
        yield process
