"""What CONTRIBUTING promises: a plug-in, a provider and a method are one file each, found by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway import GatewayProcess, running

GUIDE = Path(__file__).parents[2] / "CONTRIBUTING.md"


def example(name: str) -> str:
    """The code that CONTRIBUTING shows for a file."""
    found = re.search(rf"```python\n# {re.escape(name)}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)
    assert found is not None, name
    return found.group(1)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """The three files of the guide, put where it says. Those of the program lie beside it, on a path of their own."""
    folder = tmp_path_factory.mktemp("guide")
    home = folder / "home"
    (home / "plugins").mkdir(parents=True)
    (home / "plugins" / "dice.py").write_text(example("plugins/dice.py"))
    (home / "agent.yaml").write_text(
        "version: 1\ndefault_model: parrot/grey\nmodels: {providers: {caged: {type: parrot}}}\n"
    )
    lines = []
    for package, file in (("coterie.models.providers", "parrot.py"), ("coterie.api.operations", "moon.py")):
        place = folder / package
        place.mkdir()
        shown = "src/" + package.replace(".", "/") + "/" + file
        (place / file).write_text(example(shown))
        lines.append(f"import {package}\n{package}.__path__.append({str(place)!r})\n")
    (folder / "sitecustomize.py").write_text("".join(lines))
    with running(home, fresh=True, PYTHONPATH=str(folder)) as gateway:
        yield gateway


def test_a_provider_is_one_file(house: GatewayProcess) -> None:
    with house.rpc() as rpc:
        for model in ("parrot/grey", "caged/green"):
            assert rpc.call("models.test", name=model)["ok"]
        listed = rpc.call("models.list")
        assert "parrot" in {provider["name"] for provider in listed["providers"]}
    with house.http() as http:
        said = {"model": "coterie/main", "messages": [{"role": "user", "content": "hello there"}]}
        answer = http.post("/v1/chat/completions", json=said).json()
        assert answer["choices"][0]["message"]["content"] == "hello there! hello there!"


def test_a_plug_in_is_one_file(house: GatewayProcess) -> None:
    with house.rpc() as rpc:
        tools = {tool["name"]: tool for tool in rpc.call("tools.list")["tools"]}
        assert tools["dice_roll"]["plugin"] == "dice"
        assert tools["dice_roll"]["capabilities"] == ["games.play"]


def test_a_method_is_one_file(house: GatewayProcess) -> None:
    with house.rpc() as rpc, house.http() as http:
        assert rpc.call("moon.phase", day="2026-11-24")["phase"] == "full"
        assert http.get("/api/moon/2026-11-24").json() == {"phase": "full"}
        assert "/api/moon/{day}" in http.get("/openapi.json").json()["paths"]
        assert http.get("/api/moon/nonsense").status_code == 400
