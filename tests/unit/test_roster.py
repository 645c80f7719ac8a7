"""Merging the file's roster with the registry's: no edit of either side is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.roster import Merge, Roster, merge

NAMES = ("main", "dot", "rose", "miles", "ci")
KEYS = ("label", "description", "ui_visible", "tool_allowlist", "memory", "limits")

plain = st.sampled_from(["a", "b", "c", True, False, None, 1, 2, [], ["x"], ["x", "y"]])
values = plain | st.dictionaries(st.sampled_from(["p", "q", "r"]), plain, max_size=3)
entries = st.dictionaries(st.sampled_from(KEYS), values, max_size=4)
rosters = st.builds(
    Roster, st.dictionaries(st.sampled_from(NAMES), entries, max_size=5), st.sampled_from(NAMES)
)


def left(result: Merge) -> Roster:
    """What both sides hold once dropped and removed agents are gone."""
    gone = {*result.dropped, *result.removed}
    return Roster({a: e for a, e in result.merged.entries.items() if a not in gone}, result.merged.default)


def leaves(entry: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """An entry as its single settings."""
    found: dict[tuple[str, ...], Any] = {}
    for key, value in entry.items():
        if isinstance(value, Mapping) and value:
            found.update(leaves(value, (*path, key)))
        else:
            found[*path, key] = value
    return found


def at(entry: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = entry
    for step in path:
        if not isinstance(value, Mapping) or step not in value:
            return "absent"
        value = value[step]
    return value


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


@given(rosters, rosters)
def test_a_file_that_nobody_touched_takes_over_the_registry(base: Roster, registry: Roster) -> None:
    result = merge(base, base, registry)
    assert left(result) == registry
    assert result.dropped == () and result.overruled == ()
    assert set(result.removed) == set(base.entries) - set(registry.entries)


@given(rosters, rosters)
def test_a_registry_that_nobody_touched_takes_over_the_file(base: Roster, file: Roster) -> None:
    result = merge(base, file, base)
    assert left(result) == file
    assert result.removed == () and result.overruled == ()
    assert set(result.dropped) == set(base.entries) - set(file.entries)


@settings(max_examples=150)
@given(rosters, rosters, rosters)
def test_no_agent_is_lost(base: Roster, file: Roster, registry: Roster) -> None:
    result = merge(base, file, registry)
    assert set(result.merged.entries) == {*file.entries, *registry.entries}
    assert set(result.dropped) == {a for a in base.entries if a not in file.entries and a in registry.entries}
    assert set(result.removed) == {a for a in base.entries if a in file.entries and a not in registry.entries}
    assert list(result.merged.entries)[: len(file.entries)] == list(file.entries), "the file's order leads"


@settings(max_examples=300)
@given(rosters, rosters, rosters)
def test_an_edit_on_one_side_only_survives(base: Roster, file: Roster, registry: Roster) -> None:
    result = merge(base, file, registry)
    for agent in file.entries.keys() & registry.entries.keys():
        was, told, runs = base.entries.get(agent, {}), file.entries[agent], registry.entries[agent]
        merged = result.merged.entries[agent]
        for key in {*was, *told, *runs}:
            before, in_file, running = at(was, (key,)), at(told, (key,)), at(runs, (key,))
            if same(in_file, before):
                assert same(at(merged, (key,)), running)
            elif same(running, before) or same(running, in_file):
                assert same(at(merged, (key,)), in_file)
            elif not (isinstance(in_file, Mapping) and isinstance(running, Mapping)):
                assert same(at(merged, (key,)), in_file), "on a clash the file wins"
                assert f"{agent}.{key}" in result.overruled
    if file.default == base.default:
        assert result.merged.default == registry.default
    else:
        assert result.merged.default == file.default


@settings(max_examples=150)
@given(entries, entries, entries)
def test_edits_inside_one_setting_survive_side_by_side(
    was: dict[str, Any], told: dict[str, Any], runs: dict[str, Any]
) -> None:
    """Two people change different parts of `memory` at once."""
    both = merge(*(Roster({"dot": {"memory": part}}) for part in (was, told, runs)))
    merged = both.merged.entries["dot"]["memory"]
    for key in {*was, *told, *runs}:
        before, in_file, running = (at(part, (key,)) for part in (was, told, runs))
        if same(in_file, before):
            assert same(at(merged, (key,)), running)
        elif same(running, before):
            assert same(at(merged, (key,)), in_file)


@settings(max_examples=150)
@given(rosters, rosters, rosters)
def test_once_both_sides_took_the_merge_over_nothing_is_left_to_do(
    base: Roster, file: Roster, registry: Roster
) -> None:
    agreed = left(merge(base, file, registry))
    again = merge(agreed, agreed, agreed)
    assert again == Merge(agreed, (), (), ())


@settings(max_examples=150)
@given(rosters, rosters, rosters)
def test_cut_short_after_the_registry_committed_the_file_still_gets_it_all(
    base: Roster, file: Roster, registry: Roster
) -> None:
    """The registry took the merge over and remembers the file as it was; the file was not written."""
    agreed = left(merge(base, file, registry))
    again = merge(file, file, agreed)
    assert left(again) == agreed
    assert again.dropped == ()


@given(rosters, rosters, rosters)
def test_single_settings_come_from_one_of_the_sides(base: Roster, file: Roster, registry: Roster) -> None:
    result = merge(base, file, registry)
    for agent, entry in result.merged.entries.items():
        known = [leaves(side.entries.get(agent, {})) for side in (file, registry)]
        for path, value in leaves(entry).items():
            if value != {}:
                assert any(path in side and same(side[path], value) for side in known)
