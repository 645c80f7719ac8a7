"""Memories: who sees what, what is found, and what stays after changes, crashes and goodbyes. On both databases."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text

from coterie.app import opened
from coterie.core.errors import Conflict, CoterieError, InvalidRequest, NotFound
from coterie.core.memory import Filters
from coterie.engine.gateway import Gateway
from coterie.engine.household.home import Home
from coterie.engine.memory import text as memory_text
from coterie.engine.memory.files import sections
from coterie.engine.memory.memories import MemoryHandle
from coterie.store.database import Database

Open = Callable[[], AbstractContextManager[Gateway]]


@pytest.fixture(params=["sqlite", "postgresql"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same household every time, on each of the two databases."""
    home = tmp_path / "home"
    home.mkdir()
    lines = "version: 1\n"
    if request.param == "postgresql":
        lines += f"database: {{url: '{request.getfixturevalue('postgres_url')}'}}\n"
    lines += """agents:
  roster:
    - {name: dot}
    - {name: rose}
    - {name: hermit, memory: {read_policy: isolated}}
    - {name: friend, memory: {read_policy: group, group: [rose]}}
"""
    (home / "agent.yaml").write_text(lines)

    @contextmanager
    def open_it() -> Iterator[Gateway]:
        with opened(Home(home)) as gateway:
            yield gateway

    return open_it


def texts(gateway: Gateway, agent: str | None, query: str, **more: Any) -> set[str]:
    return {hit.memory.content for hit in gateway.memories.as_(agent).recall(query, limit=50, **more)}


def tell(gateway: Gateway, agent: str | None, content: str, **more: Any) -> str:
    return gateway.memories.as_(agent).remember(content, **more).id


def test_each_sees_its_own_and_what_its_policy_lets_it_see(house: Open) -> None:
    with house() as gateway:
        tell(gateway, "dot", "the boat of dot is for everybody")
        tell(gateway, "dot", "the boat key of dot", scope="private")
        tell(gateway, "rose", "the boat of rose is for everybody")
        tell(gateway, "rose", "the boat key of rose", scope="private")
        tell(gateway, "hermit", "the boat of the hermit")
        tell(gateway, None, "the boat of the house")
        shared = {
            "the boat of dot is for everybody",
            "the boat of rose is for everybody",
            "the boat of the hermit",
            "the boat of the house",
        }
        assert texts(gateway, "dot", "boat") == shared | {"the boat key of dot"}
        assert texts(gateway, "rose", "boat") == shared | {"the boat key of rose"}
        assert texts(gateway, None, "boat") == shared
        assert texts(gateway, "main", "boat") == shared
        assert texts(gateway, "hermit", "boat") == {"the boat of the hermit"}
        assert texts(gateway, "friend", "boat") == {"the boat of rose is for everybody"}
        for mode in ("text", "vector"):
            assert "the boat key of dot" not in texts(gateway, "rose", "boat key of dot", mode=mode)
            assert "the boat key of dot" in texts(gateway, "dot", "boat key of dot", mode=mode)


def test_what_another_owns_cannot_be_reached_by_its_id(house: Open) -> None:
    with house() as gateway:
        secret = tell(gateway, "dot", "the boat key", scope="private")
        for other in ("rose", None):
            handle = gateway.memories.as_(other)
            attempts: tuple[Callable[[MemoryHandle], object], ...] = (
                lambda h: h.get(secret),
                lambda h: h.update(secret, content="mine now"),
                lambda h: h.forget(secret),
                lambda h: h.history(secret),
                lambda h: h.remember("a newer one", supersedes=secret),
            )
            for attempt in attempts:
                with pytest.raises(NotFound):
                    attempt(handle)
        assert gateway.memories.as_("dot").get(secret).content == "the boat key"


CHANGES: tuple[Callable[[MemoryHandle, str], object], ...] = (
    lambda h, one: h.forget(one),
    lambda h, one: h.remember("there is no boat", scope="global", supersedes=one),
    lambda h, one: h.update(one, content="there is no boat"),
    lambda h, one: h.update(one, scope="private"),
    lambda h, one: h.update(one, scope="global"),
    lambda h, one: h.update(one, tags=["other"]),
    lambda h, one: h.update(one, occurred_at="1999-01-01"),
    lambda h, one: h.update(one, pinned=True),
)


@pytest.mark.parametrize("change", CHANGES)
def test_what_an_agent_may_not_forget_it_cannot_hide_or_change(
    house: Open, change: Callable[[MemoryHandle, str], object]
) -> None:
    with house() as gateway:
        shared = tell(gateway, "dot", "the boat is blue")
        before = gateway.memories.as_("dot").get(shared)
        with pytest.raises(Conflict, match="belongs to another agent: dot"):
            change(gateway.memories.as_("rose"), shared)
        assert gateway.memories.as_("dot").page(superseded=True)[0] == [before]
        assert texts(gateway, "friend", "boat") == set()
        assert texts(gateway, None, "boat") == {"the boat is blue"}
        change(gateway.memories.as_("dot"), shared)


def test_what_nobody_in_particular_puts_right_stays_its_owners(house: Open) -> None:
    with house() as gateway:
        first = tell(gateway, "hermit", "the boat lies in Kiel")
        second = gateway.memories.as_nobody().remember("the boat lies in Rostock", supersedes=first)
        assert second.agent_id == "hermit"
        assert texts(gateway, "hermit", "where is the boat?") == {"the boat lies in Rostock"}


def test_a_memory_is_superseded_once(house: Open) -> None:
    with house() as gateway:
        handle = gateway.memories.as_("dot")
        first = handle.remember("the boat lies in Kiel")
        second = handle.remember("the boat lies in Lübeck", supersedes=first.id)
        third = handle.remember("the boat lies in Rostock", supersedes=second.id)
        with pytest.raises(Conflict, match=third.id) as refused:
            handle.remember("the boat lies in Bremen", supersedes=first.id)
        assert refused.value.details == {"superseded_by": third.id}
        assert texts(gateway, "dot", "where does the boat lie?") == {"the boat lies in Rostock"}
        assert len(handle.page(superseded=True)[0]) == 3
        hidden = handle.remember("the boat lies at home", scope="private", supersedes=third.id)
        with pytest.raises(Conflict, match="not seen here") as refused:
            gateway.memories.as_nobody().remember("the boat lies in Bremen", supersedes=first.id)
        assert hidden.id not in str(refused.value) and refused.value.details is None


def test_of_many_who_supersede_at_once_one_does(house: Open) -> None:
    with house() as gateway, ThreadPoolExecutor(6) as pool:
        handle = gateway.memories.as_("dot")
        for number in range(5):
            older = handle.remember(f"harbour {number} is open")

            def attempt(n: int, older: str = older.id) -> bool:
                try:
                    if n % 3 == 2:
                        handle.update(older, tags=[f"t{n}"])
                        return False
                    handle.remember(f"harbour is closed, says {n}", supersedes=older)
                    return True
                except Conflict:
                    return False

            assert sum(pool.map(attempt, range(6))) == 1
        holding = handle.page()[0]
        assert len(holding) == 5 and all("closed" in memory.content for memory in holding)
        assert len(handle.page(superseded=True)[0]) == 10


def test_a_long_history_is_forgotten_to_its_end(house: Open) -> None:
    with house() as gateway:
        handle = gateway.memories.as_("dot")
        newest = handle.remember("the mast measures 0 feet", scope="private")
        for number in range(1, 120):
            newest = handle.remember(f"the mast measures {number} feet", supersedes=newest.id)
        gateway.memories.as_nobody().forget(newest.id)
        assert handle.page(superseded=True)[0] == []


def test_what_somebody_elses_memory_took_the_place_of_holds_again_without_it(house: Open) -> None:
    """As an older Coterie left it."""
    with house() as gateway:
        handle = gateway.memories.as_("dot")
        for sign, whose in (("red", "rose"), ("green", "hermit")):
            mine = tell(gateway, "dot", f"the {sign} boat is seaworthy")
            other = tell(gateway, whose, f"the {sign} boat is a wreck")
            with gateway.store.write() as tx:
                tx.memories.supersede(handle.get(mine), handle.get(other))
            assert f"the {sign} boat is seaworthy" not in texts(gateway, "dot", f"{sign} boat")
            if whose == "rose":
                gateway.memories.as_("rose").forget(other)
            else:
                gateway.registry.delete("hermit")
                gateway.registry.purge("hermit")
            assert f"the {sign} boat is seaworthy" in texts(gateway, "dot", f"{sign} boat")
            assert handle.get(mine).superseded_by is None


def test_ids_can_be_shortened_to_what_is_unique_of_what_one_sees(house: Open) -> None:
    entries = [
        {"id": "abc1", "content": "the first boat"},
        {"id": "ABC2", "content": "the second boat"},
        {"id": "abd%_", "content": "the third boat"},
        {"id": "ab", "content": "the fourth boat"},
        {"id": "abc9", "content": "a secret boat", "agent_id": "rose", "scope": "private"},
    ]
    with house() as gateway:
        gateway.memories.as_nobody().import_([{"agent_id": "dot", **entry} for entry in entries])
        handle = gateway.memories.as_("dot")
        assert handle.get("abc").id == "abc1"
        assert handle.get("ab").id == "ab"
        assert handle.get("A").id == "ABC2"
        assert handle.get("abd%").id == "abd%_"
        for start in ("abc9", "b", "a%", "ab_", "abc%"):
            with pytest.raises(NotFound):
                handle.get(start)
        with pytest.raises(Conflict, match="3 memories") as many:
            handle.forget("a")
        assert many.value.details == {"count": 3}
        with pytest.raises(Conflict, match="2 memories"):
            gateway.memories.as_("rose").get("abc")
        assert handle.update("abd", tags=["x"]).id == "abd%_"
        newer = handle.remember("the fifth boat", supersedes="abd")
        assert [m.id for m in handle.history(newer.id[:20])] == ["abd%_"]
        assert handle.forget("abc").id == "abc1"
        assert gateway.memories.as_("rose").get("abc9").content == "a secret boat"


@pytest.mark.parametrize(
    ("agent", "scope"), [(None, "private"), ("dot", "archived"), ("dot", "secret"), (None, "archived")]
)
def test_what_cannot_be_stored_is_refused(house: Open, agent: str | None, scope: str) -> None:
    with house() as gateway:
        with pytest.raises(InvalidRequest):
            tell(gateway, agent, "something", scope=scope)
        for content in ("", "  \n"):
            with pytest.raises(InvalidRequest):
                tell(gateway, "dot", content)
        assert gateway.memories.as_("dot").counts() == []


def test_an_agent_that_leaves_takes_its_memories_along_and_brings_them_back(house: Open) -> None:
    with house() as gateway:
        tell(gateway, "dot", "the boat is blue")
        tell(gateway, "dot", "the boat key", scope="private")
        gateway.registry.delete("dot")
        assert texts(gateway, "rose", "boat blue key") == set()
        with pytest.raises(NotFound):
            gateway.memories.as_("dot")
        assert gateway.memories.archived_count("dot").archived == 2
        gateway.registry.restore("dot")
        assert texts(gateway, "dot", "boat blue key") == {"the boat is blue", "the boat key"}
        assert texts(gateway, "rose", "boat blue key") == {"the boat is blue"}
        assert texts(gateway, "dot", "boat", mode="vector") == set()
        while gateway.memories.reindex_some().pending:
            pass
        assert texts(gateway, "dot", "boat", mode="vector") == {"the boat is blue", "the boat key"}
        gateway.registry.purge("dot")
        assert texts(gateway, "rose", "boat blue key") == set()
        gateway.registry.create("dot")
        assert texts(gateway, "dot", "boat blue key") == set()


def test_nothing_of_a_purged_agent_is_left_in_the_files(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with opened(Home(home)) as gateway:
        gateway.registry.create("dot")
        for number in range(300):
            tell(gateway, "dot", f"xylophone number {number} of the quartermaster", scope="private")
            tell(gateway, None, f"something else {number}")
        gateway.registry.purge("dot")
        found = [p.name for p in home.glob("coterie.db*") if b"xyloph" in p.read_bytes()]
        assert found == []
        assert len(texts(gateway, None, "something else 7")) == 50


# Finding


def test_words_are_found_in_other_forms_and_with_their_neighbours(house: Open) -> None:
    with house() as gateway:
        handle = gateway.memories.as_("dot")
        handle.remember("Rose: Which instruments do you play?", thread="talk", source_ref="1")
        handle.remember("Dot: The violin, since I was four.", thread="talk", source_ref="2")
        handle.remember("Dot: We baked three loaves of rye bread.", thread="other", source_ref="3")
        hits = handle.recall("what instrument does dot play?", mode="text")
        assert {hit.memory.source_ref for hit in hits[:2]} == {"1", "2"}
        assert handle.recall("baking a loaf")[0].memory.source_ref == "3"


def test_a_neighbour_that_is_private_to_another_says_nothing(house: Open) -> None:
    with house() as gateway:
        dot = gateway.memories.as_("dot")
        dot.remember("the code of the vault is zanzibar", thread="t", scope="private")
        dot.remember("an open remark", thread="t")
        assert texts(gateway, "rose", "zanzibar vault", mode="text") == set()
        assert "an open remark" in texts(gateway, "dot", "zanzibar vault", mode="text")


def test_time_words_find_what_happened_then(house: Open) -> None:
    today = datetime.now(UTC)
    with house() as gateway:
        handle = gateway.memories.as_("dot")
        handle.remember("we painted the boat", occurred_at="2023-05-08T13:56:00Z")
        handle.remember("we painted the boat again and again", occurred_at="2023-09-02")
        handle.remember("the dentist was kind", occurred_at=(today - timedelta(days=1)).isoformat())
        handle.remember("the dentist was late", occurred_at=(today - timedelta(days=30)).isoformat())
        assert (
            handle.recall("What did we decide about the boat in May?")[0].memory.content
            == "we painted the boat"
        )
        assert handle.recall("the boat on 2 September 2023")[0].memory.content.endswith("again and again")
        assert handle.recall("what happened yesterday?")[0].memory.content == "the dentist was kind"
        since = Filters(since=(today - timedelta(days=2)).isoformat())
        assert texts(gateway, "dot", "dentist boat", filters=since) == {"the dentist was kind"}


def test_times_of_every_kind_bring_what_happened_then_to_the_front(house: Open) -> None:
    today = date.today()
    days = {
        "one": today - timedelta(days=1),
        "two": today + timedelta(days=1),
        "three": date(2020, 11, 10),
        "four": date(2021, 3, 5),
        "five": date(2023, 7, 20),
    }
    with house() as gateway:
        handle = gateway.memories.as_("dot")
        for name, day in days.items():
            handle.remember(f"the dentist on visit {name} was here", occurred_at=day.isoformat())
        for question, expected in (
            ("dentist yesterday", "one"),
            ("dentist gestern", "one"),
            ("which dentist comes tomorrow?", "two"),
            ("dentist, mañana", "two"),
            ("10.11.2020 dentist", "three"),
            ("the dentist on 2020-11-10", "three"),
            ("dentist before 2021", "three"),
            ("dentist vor 2021", "three"),
            ("dentist after 10 November 2020 and before May 2021", "four"),
            ("dentist between February and April 2021", "four"),
            ("dentist in summer 2023", "five"),
            ("2023年7月 dentist", "five"),
        ):
            timely = [hit.memory.content for hit in handle.recall(question) if "time" in hit.via]
            assert f"the dentist on visit {expected} was here" in timely, question
            assert handle.recall(question)[0].memory.content == timely[0], question


def test_tags_and_scope_narrow_a_search(house: Open) -> None:
    with house() as gateway:
        tell(gateway, "dot", "boat one", tags=["sea", "100%"])
        tell(gateway, "dot", "boat two", tags=["lake"], scope="private")
        assert texts(gateway, "dot", "boat", filters=Filters(tags=("sea",))) == {"boat one"}
        assert texts(gateway, "dot", "boat", filters=Filters(tags=("100%",))) == {"boat one"}
        assert texts(gateway, "dot", "boat", filters=Filters(tags=("10_%",))) == set()
        assert texts(gateway, "dot", "boat", filters=Filters(scope="private")) == {"boat two"}
        assert texts(gateway, None, "boat", filters=Filters(scope="private")) == set()


@pytest.mark.parametrize(
    "query",
    ['"', "'", "NEAR(a b)", "a* OR b", "col:x", "-", "^a", "(", "🦊", "a\x01b", "boat " * 10_000,
     " ".join(f"w{n}" for n in range(10_000)), "part : shared0", "%", "\\", ":me", "AND", "é", "日本"],
)  # fmt: skip
def test_no_question_breaks_the_query_language(house: Open, query: str) -> None:
    with house() as gateway:
        tell(gateway, "dot", "the boat key", scope="private")
        tell(gateway, "rose", "a plain remark")
        assert "the boat key" not in texts(gateway, "rose", query)


def test_as_many_are_found_as_are_asked_for(house: Open) -> None:
    with house() as gateway:
        handle = gateway.memories.as_("dot")
        handle.import_({"content": f"boat{n} harbour {n * 7919} quay{n * n}"} for n in range(300))
        assert len(handle.recall("harbour", limit=200, mode="text")) == 200
        assert len(handle.recall("harbour", limit=200)) == 200


def test_near_duplicates_collapse_and_their_rows_stay(house: Open) -> None:
    with house() as gateway:
        for _ in range(3):
            tell(gateway, "dot", "The boat is blue.")
        tell(gateway, "dot", "the boat is blue")
        tell(gateway, "dot", "the oars are red and long")
        assert len(gateway.memories.as_("dot").recall("blue boat oars")) == 2
        assert len(gateway.memories.as_("dot").page()[0]) == 5


def test_what_differs_in_a_number_or_a_not_stays_two_and_of_the_same_the_newer_is_shown(house: Open) -> None:
    ferry = "on weekdays in winter the small green ferry to the island leaves from the old quay behind the fish market"
    with house() as gateway:
        for said in (f"{ferry} at 7", f"{ferry} at 8", ferry.replace("leaves", "never leaves")):
            tell(gateway, "dot", said)
        assert len(texts(gateway, "dot", "when does the ferry to the island leave?")) == 3
        handle = gateway.memories.as_("hermit")
        older = tell(gateway, "hermit", "The anchor is rusty!", occurred_at="2026-01-02")
        newer = tell(gateway, "hermit", "the anchor is rusty", occurred_at="2026-03-04")
        tell(gateway, "hermit", "The anchor is rusty.", occurred_at="2025-05-06")
        assert [hit.memory.id for hit in handle.recall("rusty anchor")] == [newer]
        assert [hit.memory.id for hit in handle.recall("rusty anchor in January 2026")] == [older]


def test_a_newer_fact_takes_the_place_of_an_older_one(house: Open) -> None:
    with house() as gateway:
        handle = gateway.memories.as_("dot")
        first = handle.remember("the boat lies in Kiel")
        second = handle.remember("the boat lies in Lübeck", supersedes=first.id)
        third = handle.remember("the boat lies in Rostock", supersedes=second.id)
        assert texts(gateway, "dot", "where does the boat lie?") == {"the boat lies in Rostock"}
        assert [m.content[-6:] for m in handle.history(third.id)] == ["Lübeck", "n Kiel"]
        handle.forget(third.id)
        assert handle.page(superseded=True)[0] == []


def test_an_edited_memory_is_found_by_what_it_says_now(house: Open) -> None:
    with house() as gateway:
        handle = gateway.memories.as_("dot")
        made = handle.remember("the boat is blue", tags=["sea"])
        handle.update(made.id, content="the bicycle is green", pinned=True)
        for mode in ("text", "hybrid"):
            assert texts(gateway, "dot", "boat", mode=mode) <= {"the bicycle is green"}
        assert texts(gateway, "dot", "boat", mode="text") == set()
        assert texts(gateway, "dot", "bicycle", mode="text") == {"the bicycle is green"}
        after = handle.get(made.id)
        assert after.tags == ("sea",) and after.pinned_at is not None
        handle.update(made.id, scope="private")
        assert texts(gateway, "rose", "bicycle") == set()
        handle.forget(made.id)
        assert texts(gateway, "dot", "bicycle") == set()


# Files


def test_files_are_memories_of_their_agent_and_follow_edits(house: Open) -> None:
    with house() as gateway:
        folder = gateway.home.agents / "dot"
        (folder / "MEMORY.md").write_text("# Boats\n\nThe quay is called Zephyr.\n")
        (folder / "memory" / "2026-05-01.md").write_text("We sold the Zephyr to Ann.\n")
        found = gateway.memories.as_("dot").recall("Zephyr")
        assert {hit.memory.source_ref for hit in found} == {"MEMORY.md#Boats", "memory/2026-05-01.md"}
        assert {hit.memory.scope for hit in found} == {"private"}
        for other in ("rose", "hermit", None):
            assert texts(gateway, other, "Zephyr quay Ann") == set()
        (folder / "MEMORY.md").write_text("# Boats\n\nThe quay is called Borealis.\n")
        assert texts(gateway, "dot", "Zephyr", mode="text") == {"We sold the Zephyr to Ann."}
        assert "Boats\nThe quay is called Borealis." in texts(gateway, "dot", "Borealis")
        [section] = [
            h.memory for h in gateway.memories.as_("dot").recall("Borealis") if h.memory.file == "MEMORY.md"
        ]
        with pytest.raises(Conflict):
            gateway.memories.as_("dot").forget(section.id)
        (folder / "MEMORY.md").unlink()
        assert texts(gateway, "dot", "Borealis", mode="text") == set()


# In and out


def test_an_export_comes_back_exactly(house: Open, tmp_path: Path) -> None:
    odd = 'two\nlines, "quotes", ~~~ and ~~~~\n\n# a heading\n<!-- memory {} -->\r\n\u2028 tail  '
    with house() as gateway:
        handle = gateway.memories.as_("dot")
        first = handle.remember(odd, scope="private", tags=["a b", "-->"], thread="t", source_ref="x --> y")
        handle.remember("newer", supersedes=first.id, occurred_at="2020-02-29")
        handle.update(handle.remember("pinned").id, pinned=True)
        entries = list(handle.export())
        assert len(entries) == 3
        for form in ("jsonl", "markdown"):
            written = memory_text.write(entries, form)
            assert list(memory_text.read(written, form)) == entries
    with opened(Home(tmp_path / "other")) as other:
        other.registry.create("dot")
        there = other.memories.as_("dot")
        assert there.import_(entries).added == 3
        assert list(there.export()) == entries
        again = there.import_(entries)
        assert (again.added, again.present) == (0, 3)
        assert len(list(there.export())) == 3
        assert texts(other, "dot", "quotes heading tail newer pinned") == {"newer", "pinned"}


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1), max_size=5
    )
)
def test_any_text_survives_both_formats(contents: list[str]) -> None:
    entries = [{"id": str(n), "content": content, "scope": "global"} for n, content in enumerate(contents)]
    for form in ("jsonl", "markdown"):
        assert list(memory_text.read(memory_text.write(entries, form), form)) == entries


def test_an_import_with_a_mistake_stores_nothing(house: Open) -> None:
    fine = [{"content": f"fine {n}"} for n in range(3_000)]
    with house() as gateway:
        handle = gateway.memories.as_("dot")
        for wrong in (
            {"content": ""},
            {"content": "x", "agent_id": "nobody"},
            {"content": "x", "created_at": "soon"},
            {"content": "x", "scope": "archived"},
            {"content": "x", "audience": "somebody"},
            {"content": "x", "agent_id": "rose"},
        ):
            with pytest.raises(CoterieError, match="entry 3001"):
                handle.import_([*fine, wrong])
        assert handle.page()[0] == [] and gateway.memories.as_("rose").page()[0] == []


def test_an_id_that_comes_twice_is_stored_once(house: Open) -> None:
    with house() as gateway:
        handle = gateway.memories.as_("dot")
        done = handle.import_([{"id": "one", "content": "the first"}, {"id": "one", "content": "the second"}])
        assert (done.added, done.present) == (1, 1)
        assert handle.get("one").content == "the first"


def test_no_write_of_an_import_is_large(house: Open) -> None:
    rows: list[int] = []

    def watch(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        if statement.startswith("INSERT INTO memories ("):
            rows.append(sum(len(row[3]) for row in parameters))
            assert len(parameters) <= 1_000 and (rows[-1] <= 300_000 or len(parameters) == 1)

    with house() as gateway:
        handle = gateway.memories.as_("dot")
        with gateway.store.read() as tx:
            engine = tx.connection.engine
        event.listen(engine, "before_cursor_execute", watch)
        entries = [{"content": f"load {n}"} for n in range(3_000)]
        entries += [{"content": "heavy " * 15_000} for _ in range(8)]
        assert handle.import_(entries).added == 3_008
        event.remove(engine, "before_cursor_execute", watch)
    assert len(rows) > 5


FILLER = " ".join(f"Section {n} of the quarterly minutes covers budget{n} and staff{n}." for n in range(400))


@pytest.mark.parametrize(
    "asked",
    [
        f"{FILLER} What colour is the kayak?",
        f"What colour is the kayak? {FILLER}",
        f"{FILLER} What colour is the kayak? Thank you very much for looking.",
        f"{FILLER}\nkayak colour",
        "x" * 100_000 + " What colour is the kayak?",
    ],
    ids=["at the end", "at the beginning", "before the end", "no question", "after one long word"],
)
def test_a_long_message_is_searched_for_what_it_asks(house: Open, asked: str) -> None:
    with house() as gateway:
        for number in range(30):
            tell(gateway, "dot", f"the minutes of meeting {number} are in the blue folder")
        tell(gateway, "dot", "The kayak is bright orange.")
        hits = gateway.memories.as_("dot").recall(asked, mode="text")
        kayak = next(hit for hit in hits if "kayak" in hit.memory.content)
        assert kayak.strong


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("Мария купила зелёную лодку в Одессе", "где лодки Марии?"),
        ("ЛОДКА СТОИТ У ПРИЧАЛА", "лодка"),
        ("Τα σπίτια μας είναι στην Πάτρα", "Που είναι το ΣΠΙΤΙ;"),
        ("اشترت مريم القاربَ الأزرق", "أين القارب"),
        ("서울에서 김치를 샀어요", "김치"),
        ("我们在上海买了一条船", "上海的船在哪里"),
        ("我们在上海买了一条船", "船"),
        ("東京でボートを買いました", "ボートはどこ"),
        ("เราซื้อเรือที่ภูเก็ต", "ภูเก็ต"),
        ("हमने नई किताबें खरीदीं", "किताब कहाँ है"),
        ("קנינו סירה בחיפה", "סירה"),
        ("Die Häuser am Hafen sind rot", "Welche Farbe hat das Haus?"),
        ("Les chevaux sont dans le pré", "Où est mon cheval ?"),
        ("Las canciones de mi abuela son tristes", "¿Cuál canción?"),
        ("Crème brûlée is on the menu", "creme brulee"),
        ("Dot writes C++ at night", "who knows C++?"),
        ("Rose prefers C# for tools", "c#"),
        ("Statistics are done in R here", "Who uses R?"),
        ("The billing service runs on .NET", ".net"),
        ("The portal is an ASP.NET site", ".NET"),
        ("The gateway was rewritten in Go", "Go"),
        ("rename it to snake_case please", "snake"),
    ],
)
def test_words_of_every_script_are_found_by_their_text(house: Open, said: str, asked: str) -> None:
    with house() as gateway:
        for filler in (
            "the oars are long",
            "весло длинное",
            "桨很长",
            "노가 길어요",
            "C is a letter",
            "a net for fish",
        ):
            tell(gateway, "dot", filler)
        tell(gateway, "dot", said, scope="private")
        hits = gateway.memories.as_("dot").recall(asked, mode="text")
        assert hits and hits[0].memory.content == said
        assert "text" in hits[0].via
        assert said not in texts(gateway, "rose", asked)


def test_a_language_is_not_needed_to_find_the_other_form_of_a_word(house: Open) -> None:
    with house() as gateway:
        tell(gateway, "dot", "Die Boote und die Häuser gehören uns nicht")
        assert texts(gateway, "dot", "Boot", mode="text")
        assert texts(gateway, "dot", "Haus", mode="text")


def test_a_memory_of_great_length_is_indexed_up_to_a_bound(house: Open) -> None:
    with house() as gateway:
        tell(gateway, "dot", "anchor " + "я船ก" * 20_000 + " sextant")
        assert texts(gateway, "dot", "anchor", mode="text")
        assert not texts(gateway, "dot", "sextant", mode="text")


def test_what_one_forgets_leaves_the_vectors_of_others_in_place(house: Open) -> None:
    with house() as gateway:
        tell(gateway, "dot", "the sailing vessel is azure", scope="private")
        gone = tell(gateway, "rose", "the automobile is crimson", scope="private")
        kept = tell(gateway, "rose", "the bicycle is yellow", scope="private")
        ask = {"mode": "vector"}
        assert "the sailing vessel is azure" in texts(gateway, "dot", "boat colour", **ask)
        assert "the automobile is crimson" in texts(gateway, "rose", "car colour", **ask)
        gateway.memories.as_("rose").forget(gone)
        gateway.memories.as_("rose").update(kept, content="the bicycle is green now")
        with gateway.store.write() as tx:
            # What the tables hold is not looked at again: it was read once, and nothing of it changed.
            tx.connection.execute(text("UPDATE memory_index SET vector = NULL WHERE owner = 'dot'"))
        assert "the sailing vessel is azure" in texts(gateway, "dot", "boat colour", **ask)
        found = texts(gateway, "rose", "car bike colour", **ask)
        assert "the automobile is crimson" not in found
        assert "the bicycle is green now" in found


def test_a_change_that_is_taken_back_takes_nothing_out_of_the_vectors(house: Open) -> None:
    with house() as gateway:
        kept = tell(gateway, "dot", "the sailing vessel is azure")
        assert texts(gateway, "dot", "boat colour", mode="vector")

        def remove_in_vain() -> None:
            with gateway.store.write() as tx:
                tx.memories.remove([kept])
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            remove_in_vain()
        assert texts(gateway, "dot", "boat colour", mode="vector") == {"the sailing vessel is azure"}


def test_a_small_agent_gets_its_own_among_many_strangers(house: Open) -> None:
    with house() as gateway:
        for number in range(12):
            tell(gateway, "dot", f"boat harbour quay {number} {'abcdefghijkl'[number] * 4}", scope="private")
        others = [
            {"content": f"boat harbour quay mast {n} {n * n}", "scope": "private"} for n in range(3_000)
        ]
        gateway.memories.as_("rose").import_(others)
        for mode in ("text", "vector", "hybrid"):
            hits = gateway.memories.as_("dot").recall("boat harbour quay", limit=10, mode=mode)
            assert [hit.memory.agent_id for hit in hits] == ["dot"] * 10


OLDER_WORDS = {
    "sqlite": (
        "DROP TABLE memories_fts",
        "CREATE VIRTUAL TABLE memories_fts USING fts5("
        "content, more, part, tokenize = 'porter unicode61 remove_diacritics 2')",
    ),
    "postgresql": (
        "DROP TABLE memories_fts",
        "CREATE TABLE memories_fts (rowid BIGINT PRIMARY KEY, owner TEXT NOT NULL, private BOOLEAN NOT NULL,"
        " audience TEXT, words TSVECTOR NOT NULL)",
    ),
}


def test_an_older_store_is_indexed_anew_and_says_how_far_it_is(
    house: Open,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    with house() as gateway:
        gateway.memories.as_("dot").import_(
            {"content": f"лодка номер {n}", "scope": "private"} for n in range(6_000)
        )
        with gateway.store.write() as tx:
            kind = tx.connection.dialect.name
            for statement in OLDER_WORDS[kind]:
                tx.connection.exec_driver_sql(statement)
            tx.connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0010'")
    if kind == "postgresql":
        programs = request.getfixturevalue("postgres_server").programs  # the backup needs its pg_dump
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    with caplog.at_level("INFO", "coterie.store"), house() as gateway:
        assert "лодка номер 4321" in texts(gateway, "dot", "лодки 4321", mode="text")
        assert texts(gateway, "rose", "лодки 4321") == set()
    assert "indexing memories anew: 5000 of 6000" in caplog.messages


# What was there before


def test_an_older_table_is_taken_over_without_touching_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    database = Database.connect("sqlite:///coterie.db", home)
    with monkeypatch.context() as before:
        before.setattr("coterie.store.schema.HEAD", "0003")
        database.bring_forward(home / "backups")
    with database.engine.connect() as connection, connection.begin():
        connection.execute(
            text(
                "CREATE TABLE memories (id TEXT PRIMARY KEY, content TEXT NOT NULL, mood TEXT, created_at TEXT)"
            )
        )
        connection.execute(
            text(
                "INSERT INTO memories VALUES ('a', 'the old boat', 'calm', '2024-01-01'), ('b', 'the oars', NULL, NULL)"
            )
        )
    database.close()
    with opened(Home(home)) as gateway:
        assert texts(gateway, None, "boat oars") == {"the old boat", "the oars"}
        assert {m.agent_id for m in gateway.memories.as_(None).page()[0]} == {"main"}
        assert gateway.memories.as_("main").recall("boat")[0].memory.scope == "global"
        gateway.memories.as_(None).remember("a new boat")
        assert "a new boat" in texts(gateway, "main", "boat")
        with gateway.store.read() as tx:
            rows = tx.connection.execute(
                text("SELECT id, content, mood, created_at, agent_id, scope FROM memories WHERE id < 'c'")
            ).all()
        assert [tuple(row) for row in rows if row[0] in "ab"] == [
            ("a", "the old boat", "calm", "2024-01-01", None, None),
            ("b", "the oars", None, None, None, None),
        ]


def test_a_change_of_model_makes_new_vectors_and_searching_goes_on(house: Open) -> None:
    with house() as gateway:
        for number in range(600):
            tell(gateway, "dot", f"boat number {number}", thread="t")
        gateway.memories.begin_reindex()
        assert gateway.memories.progress().pending == 600
        assert "boat number 7" in texts(gateway, "dot", "boat number 7")
        assert gateway.memories.reindex_some().pending == 600 - 256
    with house() as gateway:
        assert gateway.memories.progress().pending == 600 - 256
        while gateway.memories.reindex_some().pending:
            assert "boat number 7" in texts(gateway, "dot", "boat number 7")
        assert "boat number 599" in texts(gateway, "dot", "boat number 599", mode="vector")
        assert json.loads(json.dumps(gateway.memories.progress().total)) == 600


@pytest.mark.parametrize(
    "line",
    [
        "# a" + " " * 1_000_000 + "b",
        "# " + "#" * 1_000_000 + "b",
        "#" * 1_000_000,
        "# " + "# " * 500_000 + "x",
    ],
    ids=["spaces", "hashes", "only hashes", "both"],
)
def test_no_line_of_a_file_holds_up_the_house(tmp_path: Path, line: str) -> None:
    """An expression that tried every way to read such a line would still be at it."""
    with opened(Home(tmp_path / "home")) as gateway:
        (tmp_path / "home" / "agents" / "main" / "MEMORY.md").write_text(
            f"# Boats\n\nThe boat is blue.\n\n{line}\n\nThe end.\n"
        )
        found = gateway.memories.as_("main").recall("boat blue")
        assert any("The boat is blue." in hit.memory.content for hit in found)


def test_headings_are_read_as_before() -> None:
    text = "# One #\na\n###### Six\nb\n####### seven\nc\n#none\nd\n# \ne\n##\tTab ##  \nf"
    assert [(s.heading, s.text.split("\n")[-1]) for s in sections("MEMORY.md", text)] == [
        ("One", "a"),
        ("Six", "e"),
        ("Tab", "f"),
    ]
