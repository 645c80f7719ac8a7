"""One rule for every list: missing allows all, empty allows nothing, deny comes after allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.policy import permits

NAMES = st.sampled_from(["lists_add", "lists_delete", "web_fetch", "system_time", "Lists_add", ""])
PATTERNS = st.lists(
    st.sampled_from(["*", "lists_*", "lists_delete", "web_?etch", "[lw]*", "none"]), max_size=3
)


@pytest.mark.parametrize(
    ("allow", "deny", "passes"),
    [
        (None, None, True),
        (None, [], True),
        ([], None, False),
        (["*"], None, True),
        (["lists_*"], None, True),
        (["web_*"], None, False),
        (None, ["lists_*"], False),
        (["lists_*"], ["lists_add"], False),
        (["lists_*"], ["lists_delete"], True),
        (["LISTS_*"], None, False),
        (["lists"], None, False),
    ],
)
def test_lists(allow: list[str] | None, deny: list[str] | None, passes: bool) -> None:
    assert permits("lists_add", allow, deny) is passes


@given(NAMES, st.none() | PATTERNS, st.none() | PATTERNS, PATTERNS)
def test_more_denials_never_allow_more(
    name: str, allow: list[str] | None, deny: list[str] | None, more: list[str]
) -> None:
    if permits(name, allow, [*(deny or []), *more]):
        assert permits(name, allow, deny)


@given(NAMES, PATTERNS, st.none() | PATTERNS)
def test_a_list_never_allows_more_than_no_list(name: str, allow: list[str], deny: list[str] | None) -> None:
    if permits(name, allow, deny):
        assert permits(name, None, deny)
    assert not permits(name, [], deny)
