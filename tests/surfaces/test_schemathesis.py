"""The OpenAPI document is the truth: whatever is sent, every answer is one that it describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok

from tests.support.gateway import GatewayProcess, running

load_all_checks()
POSITIVE = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "allow_header_conformance",
)
# What is wrong by the document must be refused. The reverse cannot be asked of it: whether a name is free,
# or a key of a specification is known, is not in the document.
NEGATIVE = (*POSITIVE, "negative_data_rejection")
EXAMPLES = 40


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with running(tmp_path_factory.mktemp("openapi") / "home") as gateway:
        with gateway.http() as http:
            http.post("/api/agents", json={"id": "dot", "soul": "Kind.\n"}).raise_for_status()
        yield gateway


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("mode", "checks"),
    [(GenerationMode.POSITIVE, POSITIVE), (GenerationMode.NEGATIVE, NEGATIVE)],
    ids=["right", "wrong"],
)
def test_every_answer_is_documented(
    house: GatewayProcess, mode: GenerationMode, checks: tuple[str, ...]
) -> None:
    headers = {"Authorization": f"Bearer {house.token}"}
    with house.http() as http:
        told = http.get("/openapi.json").json()
    for methods in told["paths"].values():
        for described in methods.values():
            # Else most of what is wrong would be wrong in its token alone and never get past the door.
            described.pop("security", None)
    document = schemathesis.openapi.from_dict(told)
    document.config.update(base_url=house.url)
    operations = [found.ok() for found in document.get_all_operations() if isinstance(found, Ok)]
    chosen = [CHECKS.get_one(name) for name in checks]
    assert len(operations) == sum(len(methods) for methods in told["paths"].values())
    seen: Counter[int] = Counter()
    failures: list[str] = []
    with requests.Session() as session:
        for operation in operations:

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=EXAMPLES,
                deadline=None,
                derandomize=True,
                database=None,
                phases=(Phase.explicit, Phase.generate),
                suppress_health_check=list(HealthCheck),
            )
            def every_answer(case: Any) -> None:
                answer = case.call(session=session, headers=headers, timeout=60)
                seen[answer.status_code] += 1
                case.validate_response(answer, checks=chosen, headers=headers)

            try:
                every_answer()
            except Unsatisfiable:
                continue  # nothing can be wrong with a request that takes nothing
            except (Exception, FailureGroup) as error:
                failures.append(f"{operation.label}\n{type(error).__name__}: {error}"[:3000])
    assert not failures, "\n\n".join(failures)
    assert seen[400] and seen[404] and not seen[401], seen
    assert seen[200] or mode is GenerationMode.NEGATIVE, seen


def test_nothing_of_it_was_unexpected(house: GatewayProcess) -> None:
    """Given everything above, the gateway still answers and logged no failure of its own."""
    with house.http() as http:
        assert http.get("/readyz").json() == {"status": "ready"}
        assert http.get("/api/agents").json()["defaultId"]
    unexpected = [
        line for line in house.log.read_text().splitlines() if "Error: " in line or "failed (" in line
    ]
    assert not unexpected
