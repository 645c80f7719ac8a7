"""Merging the file's roster with the registry's, against what both last agreed on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.core.agent import MAIN

Entry = Mapping[str, Any]
"""A roster entry as written, without its name."""


@dataclass(frozen=True, slots=True)
class Roster:
    """Who is in the household, in order, and who is the default."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    default: str = MAIN


@dataclass(frozen=True, slots=True)
class Merge:
    """What each side has to take over so that both are the same."""

    merged: Roster
    """What both sides hold once everything below is done; entries the file dropped are still in it."""
    dropped: tuple[str, ...]
    """Agents that vanished from the file: candidates for the archive."""
    removed: tuple[str, ...]
    """Agents that the registry archived: they leave the file. Their merged entry keeps the file's last edits."""
    overruled: tuple[str, ...]
    """Keys that both sides changed, where the file's value was taken."""


_ABSENT: Any = object()


def merge(base: Roster, file: Roster, registry: Roster) -> Merge:
    """Three-way, key by key. An edit made on one side only always survives; on a clash the file wins."""
    overruled: list[str] = []
    merged: dict[str, Entry] = {}
    dropped: list[str] = []
    removed: list[str] = []
    order = [*file.entries, *(i for i in registry.entries if i not in file.entries)]
    order += [i for i in base.entries if i not in file.entries and i not in registry.entries]
    for agent in order:
        was, told, runs = base.entries.get(agent), file.entries.get(agent), registry.entries.get(agent)
        if told is None and runs is None:
            continue
        if was is not None and told is None:
            assert runs is not None
            dropped.append(agent)
            merged[agent] = runs
            continue
        if told is None or runs is None:
            present = told if runs is None else runs
            assert present is not None
            merged[agent] = present
        else:
            merged[agent] = _merge_entry(agent, was or {}, told, runs, overruled)
        if was is not None and runs is None:
            removed.append(agent)
    default = _pick("agents.default", base.default, file.default, registry.default, overruled)
    return Merge(Roster(merged, default), tuple(dropped), tuple(removed), tuple(overruled))


TRUSTED = ("owner", "allow")
"""Keys that name whom to trust: without them nobody is."""


def keep_lost(was: Any, now: Any, lost: list[str], path: str = "") -> Any:
    """What is said now, with whatever it took away put back; `lost` gets the paths.

    A file that is half written looks like one from which much was removed: keys, items of lists, the end of a
    last word. What is new or changed counts at once, and so does a right that was taken back.
    """
    key = path.rpartition(".")[2]
    if key in TRUSTED or (key.endswith("_allowlist") and isinstance(now, list)):
        return now
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        below = {key: f"{path}.{key}" if path else str(key) for key in was}
        gone = {key: _without_trust(was[key]) for key in was if key not in now and key not in TRUSTED}
        lost += [below[key] for key in gone]
        changed = {k: keep_lost(was[k], v, lost, below[k]) if k in was else v for k, v in now.items()}
        return {**changed, **gone}
    if isinstance(was, list) and isinstance(now, list):
        kept = {json.dumps(item, sort_keys=True): item for item in was}
        new = {json.dumps(item, sort_keys=True): item for item in now}
        if kept.keys() <= new.keys():
            return now
        lost.append(path)
        return list({**kept, **new}.values())
    if (now is None and was is not None) or _cut_off(was, now):
        lost.append(path)
        return was
    return now


def _without_trust(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: _without_trust(one) for key, one in value.items() if key not in TRUSTED}


def _cut_off(was: Any, now: Any) -> bool:
    """A word or a number of which only the beginning is there."""
    if type(was) is not type(now) or isinstance(was, bool) or not isinstance(was, str | int | float):
        return False
    return was != now and str(was).startswith(str(now))


def _merge_entry(where: str, was: Entry, told: Entry, runs: Entry, overruled: list[str]) -> Entry:
    keys = [*told, *(k for k in runs if k not in told)]
    result: dict[str, Any] = {}
    for key in keys:
        value = _pick(
            f"{where}.{key}",
            was.get(key, _ABSENT),
            told.get(key, _ABSENT),
            runs.get(key, _ABSENT),
            overruled,
        )
        if value is not _ABSENT:
            result[key] = value
    return result


def _pick(name: str, was: Any, told: Any, runs: Any, overruled: list[str]) -> Any:
    if _same(told, runs) or _same(runs, was):
        return told
    if _same(told, was):
        return runs
    if isinstance(told, Mapping) and isinstance(runs, Mapping):
        return _merge_entry(name, was if isinstance(was, Mapping) else {}, told, runs, overruled)
    overruled.append(name)
    return told


def _same(a: Any, b: Any) -> bool:
    """Equal and of one kind, all the way down: `true` is not 1."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and bool(a == b)
