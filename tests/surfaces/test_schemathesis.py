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
from tests.support.judge import Judge

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
REFUSED = ["400", "404", "409", "431"]
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
    """And nothing that is wrong by the document is ever done.

    The generator's own word does not count for that. Some of what it calls wrong is right on the wire: it leaves
    out a body that may be missing, adds a parameter with an empty list, which is not sent at all, or gives a
    number where a list of words is asked for, which is a list of one word in an address.
    """
    headers = {"Authorization": f"Bearer {house.token}"}
    told = described(house)
    judge = Judge(told)
    for methods in told["paths"].values():
        for one in methods.values():
            # Else most of what is wrong would be wrong in its token alone and never get past the door.
            one.pop("security", None)
    document = schemathesis.openapi.from_dict(told)
    document.config.update(base_url=house.url)
    document.config.checks.negative_data_rejection.expected_statuses = REFUSED
    operations = [found.ok() for found in document.get_all_operations() if isinstance(found, Ok)]
    chosen = [CHECKS.get_one(name) for name in checks]
    assert len(operations) == sum(len(methods) for methods in told["paths"].values())
    seen: Counter[int] = Counter()
    judged: Counter[bool] = Counter()
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
                wrong = judge.wrong(case.operation.path, answer.request)
                judged[bool(wrong)] += 1
                done = answer.status_code < 400
                assert not (wrong and done), (answer.status_code, wrong, case.as_curl_command())
                case.validate_response(answer, checks=chosen, headers=headers)

            try:
                every_answer()
            except Unsatisfiable:
                continue  # nothing can be wrong with a request that takes nothing
            except (Exception, FailureGroup) as error:
                failures.append(f"{operation.label}\n{type(error).__name__}: {error}"[:3000])
    assert not failures, "\n\n".join(failures)
    assert seen[400] and seen[404] and not seen[401], seen
    if mode is GenerationMode.POSITIVE:
        assert seen[200] and not judged[True], (seen, judged)
    else:
        assert judged[True] > 20 * judged[False], (seen, judged)


DOT = {"model": "coterie/dot", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "field"),
    [
        ("POST", "/api/agents/subagents/spawn", "", {"task": "x", "timeoutSeconds": True}, "timeoutSeconds"),
        ("POST", "/api/agents/subagents/spawn", "", {"task": "x", "timeoutSeconds": "5"}, "timeoutSeconds"),
        ("POST", "/api/memory/recall", "", {"query": "x", "limit": True}, "limit"),
        ("POST", "/v1/chat/completions", "", {**DOT, "stream": 0}, "stream"),
        ("POST", "/v1/chat/completions", "", {**DOT, "stream": "no"}, "stream"),
        ("GET", "/api/agents", "includeArchived=1", None, "includeArchived"),
        ("GET", "/api/agents", "includeArchived=yes", None, "includeArchived"),
        ("GET", "/api/sessions", "limit=1_0", None, "limit"),
        ("GET", "/api/sessions", "limit=05", None, "limit"),
        ("GET", "/api/sessions", "limit=true", None, "limit"),
    ],
)
def test_no_value_is_taken_for_one_of_another_type(
    house: GatewayProcess, method: str, path: str, query: str, body: dict[str, Any] | None, field: str
) -> None:
    answer = asked(house, method, f"{path}?{query}", body)
    assert Judge(described(house)).wrong(path, answer.request)
    assert answer.status_code == 400, answer.text
    assert [one["field"] for one in answer.json()["error"]["details"]["fields"]] == [field]


@pytest.mark.parametrize(
    ("method", "path", "address", "body"),
    [
        ("POST", "/api/sessions", "/api/sessions", None),
        ("PATCH", "/api/agents/{id}", "/api/agents/dot", None),
        ("POST", "/api/memory/recall", "/api/memory/recall", {"query": "x", "limit": 5.0}),
        ("GET", "/api/sessions", "/api/sessions?limit=5.0", None),
        ("GET", "/api/memories", "/api/memories?tags=0.5", None),
        ("GET", "/api/memories", "/api/memories?tags=", None),
    ],
)
def test_what_looks_wrong_and_is_right_is_done(
    house: GatewayProcess, method: str, path: str, address: str, body: dict[str, Any] | None
) -> None:
    answer = asked(house, method, address, body)
    assert Judge(described(house)).wrong(path, answer.request) == []
    assert answer.ok, answer.text


@pytest.mark.parametrize("size", [65_000, 65_600])
def test_an_address_that_is_too_long_is_refused_as_documented(house: GatewayProcess, size: int) -> None:
    answer = asked(house, "GET", "/api/memories?tags=" + "x" * size, None)
    assert answer.status_code == (400 if size < 65_536 else 431)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["code"] == "INVALID_REQUEST"


def described(house: GatewayProcess) -> dict[str, Any]:
    with house.http() as http:
        told: dict[str, Any] = http.get("/openapi.json").json()
    return told


def asked(house: GatewayProcess, method: str, address: str, body: dict[str, Any] | None) -> requests.Response:
    headers = {"Authorization": f"Bearer {house.token}"}
    return requests.request(method, house.url + address, json=body, headers=headers, timeout=60)


def test_nothing_of_it_was_unexpected(house: GatewayProcess) -> None:
    """Given everything above, the gateway still answers and logged no failure of its own."""
    with house.http() as http:
        assert http.get("/readyz").json() == {"status": "ready"}
        assert http.get("/api/agents").json()["defaultId"]
    unexpected = [
        line for line in house.log.read_text().splitlines() if "Error: " in line or "failed (" in line
    ]
    assert not unexpected
