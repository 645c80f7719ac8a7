"""Finding memories and past conversations: the store names candidates, `core/ranking.py` puts them in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from coterie.core.duplicates import Found, distinct
from coterie.core.errors import Unavailable
from coterie.core.fence import speaker
from coterie.core.memory import Filters, Hit, Memory, Reader, Turns
from coterie.core.message import Message
from coterie.core.ports import Embedder
from coterie.core.ranking import WINDOW, Known, Passage, Question, Ranked, rank, speakers

if TYPE_CHECKING:
    from coterie.store.transaction import Store

log = logging.getLogger("coterie.memory")

Key = TypeVar("Key", int, str)
Mode = Literal["hybrid", "text", "vector"]

PER_WORD = 5_000
"""Memories that one word may bring up; a word that has more tells little."""
CANDIDATES = 150
NEAREST = 100
ENOUGH = 2_000
"""Once so many are in sight, common words add to their score and bring up no others."""
COUNT_SECONDS = 30
AROUND = 2
"""Messages shown before and after a hit in a conversation."""
OF_ONE = 9
"""Messages shown of one conversation, unless its best hit alone has more around it."""


class MemorySearch:
    """Searches as whoever the caller says. Handles are what others get: they say it once."""

    def __init__(self, store: Store, embedder: Callable[[], Embedder | None]) -> None:
        self._store = store
        self._embedder = embedder
        self._totals: dict[Reader, tuple[float, int]] = {}

    def memories(
        self,
        reader: Reader,
        query: str,
        *,
        limit: int,
        filters: Filters,
        mode: Mode = "hybrid",
        patient: bool = True,
        without_file: str | None = None,
    ) -> list[Hit]:
        """Best first. Not `patient`: without vectors where the model would have to be loaded first."""
        question = Question.read(query, date.today())
        lists, known = self._look_up(reader, question, filters)
        if not known.total:
            return []
        chosen = strongest(lists, known, CANDIDATES)
        with self._store.read() as tx:
            rows = tx.memories.passages(reader, tx.memories.neighbourhood(reader, chosen))
        vector, model = None, ""
        if mode != "text":
            vector, model = self._vector(question, query, known, patient, [m.content for _, _, m, _ in rows])
        with self._store.read() as tx:
            if vector is not None:
                nearest = tx.memories.nearest(reader, model, vector, filters, NEAREST)
                there = {number for number, *_ in rows}
                more = [n for n in tx.memories.neighbourhood(reader, nearest) if n not in there]
                rows += tx.memories.passages(reader, more)
            similar: Mapping[int, float] = {}
            if vector is not None:
                similar = tx.memories.similarities(vector, {n: v for n, _, _, v in rows if v is not None})
            allowed = tx.memories.allowed([number for number, *_ in rows], filters)
        by_number = {number: memory for number, _, memory, _ in rows}
        passages = [
            _passage(reader, number, place, memory, similar.get(number)) for number, place, memory, _ in rows
        ]
        ranked = rank(question, passages, known, text=mode != "vector", vectors=vector is not None)
        fitting = [
            one
            for one in ranked
            if one.key in allowed and (without_file is None or by_number[int(one.key)].file != without_file)
        ]
        return _hits(fitting, by_number, limit)

    def conversations(
        self, reader: Reader, query: str, *, limit: int, apart_from: str | None = None, words: int = 48
    ) -> list[Turns]:
        """What was said in turns that the reader's agent ran for its audience, with the messages around each hit."""
        question = Question.read(query, date.today())
        question = Question(question.words[:words], question.times)
        with self._store.read() as tx:
            lists = {
                word: tx.conversations.find(reader, word, apart_from=apart_from, limit=PER_WORD // 10)
                for word in question.words
            }
            found_in = {word: len(found) for word, found in lists.items()}
            known = Known(3 * max(found_in.values(), default=0) + 100, found_in)
            chosen = strongest(lists, known, CANDIDATES // 3)
            rows = tx.conversations.passages(reader, chosen)
            passages = [
                Passage(message.id, message.text, message.created_at, session_id, message.seq or 0)
                for session_id, message in rows
            ]
            ranked = rank(question, passages, known, vectors=False)
            best = _windows(ranked, rows, limit)
            sessions = {session_id: tx.sessions.find(session_id) for session_id, *_ in best}
        found = []
        for session_id, score, strong, hits, window in best:
            session = sessions[session_id]
            if session is not None:
                whose = None if session.audience == reader.audience else session.audience
                said = tuple(_said(seq, message, seq in hits, whose) for seq, message in window)
                found.append(
                    Turns(session.id, session.key, session.name, score, strong, said, session.audience)
                )
        return found

    def _look_up(
        self, reader: Reader, question: Question, filters: Filters
    ) -> tuple[dict[str, list[int]], Known]:
        with self._store.read() as tx:
            total = self._total(reader, lambda: tx.memories.total(reader))
            if not total:
                return {}, Known(0, {})
            lists = {
                word: tx.memories.find(reader, word, filters, PER_WORD)
                for word in (*question.words, *question.time_words)
            }
        most = max((len(found) for found in lists.values()), default=0)
        return lists, Known(max(total, most), {word: len(found) for word, found in lists.items()})

    def _total(self, reader: Reader, count: Callable[[], int]) -> int:
        """Only a weight: that of a large store may be some seconds old."""
        at, total = self._totals.get(reader, (0.0, 0))
        if total < 20_000 or time.monotonic() - at > COUNT_SECONDS:
            total = count()
            if len(self._totals) > 10_000:
                self._totals.clear()
            self._totals[reader] = (time.monotonic(), total)
        return total

    def _vector(
        self, question: Question, query: str, known: Known, patient: bool, found: Sequence[str]
    ) -> tuple[bytes | None, str]:
        """Of the question. An average of words leaves out those that would drown the others: names of speakers,
        and what everybody says."""
        embedder = self._embedder()
        if embedder is None or not (patient or embedder.ready):
            return None, ""
        text = query
        if embedder.averages:
            names = speakers(found)
            words = [
                word
                for word in question.words
                if word not in names and not known.is_common(word) and known.found_in.get(word, 0) < PER_WORD
            ]
            text = " ".join(words or question.words)
        if not text.strip():
            return None, ""
        try:
            return embedder.embed([text])[0], embedder.name
        except Unavailable as error:
            log.warning("searching by words alone: %s", error.message)
            return None, ""


def strongest(lists: Mapping[str, Sequence[Key]], known: Known, limit: int) -> list[Key]:
    """What holds the rarest words of a question, and the most of them."""
    scores: dict[Key, float] = {}
    for word in sorted(lists, key=lambda word: (len(lists[word]), word)):
        rarity = known.rarity(word)
        for key in lists[word]:
            if key in scores:
                scores[key] += rarity
            elif len(scores) < ENOUGH or len(lists[word]) < limit:
                scores[key] = rarity
    return sorted(scores, key=lambda key: scores[key], reverse=True)[:limit]


def _passage(reader: Reader, number: int, place: int, memory: Memory, similarity: float | None) -> Passage:
    thread = None if memory.thread is None else f"{memory.agent_id}\n{memory.thread}"
    own = memory.agent_id == reader.agent_id
    return Passage(
        number, memory.content, memory.moment, thread, place, similarity, own, memory.pinned_at is not None
    )


def _hits(ranked: Sequence[Ranked], memories: Mapping[int, Memory], limit: int) -> list[Hit]:
    """Near-duplicates collapse into the newest of them, in the place of the best; their rows stay."""
    by_key = {int(one.key): one for one in ranked[: limit * 5]}
    shown = distinct(
        (Found(key, memories[key].content, _newness(memories[key], one)) for key, one in by_key.items()),
        limit,
    )
    return [
        Hit(memories[key], by_key[best].score, by_key[key].via, by_key[best].strong) for key, best in shown
    ]


def _newness(memory: Memory, one: Ranked) -> tuple[object, ...]:
    """What happened at the time that was asked for comes before what happened later."""
    return "time" in one.via, memory.moment, memory.created_at


def _said(seq: int, message: Message, hit: bool, audience: str | None) -> dict[str, Any]:
    """`audience`: of a conversation that is not the reader's own. What was answered there may repeat what was said."""
    who = speaker(message, audience)
    if who == "assistant" and audience is not None and message.heard_by is not None:
        who = f"assistant to guest {audience}"
    return {
        "seq": seq,
        "role": message.role,
        "origin": message.origin,
        "speaker": who,
        "text": message.text,
        "created_at": message.created_at,
        "hit": hit,
    }


def _windows(
    ranked: Sequence[Ranked], rows: Sequence[tuple[str, Message]], limit: int
) -> list[tuple[str, float, bool, set[int], list[tuple[int, Message]]]]:
    """The best hits with what was said around them. A conversation comes once, with all that it has to say."""
    said: dict[str, dict[int, Message]] = {}
    of: dict[str, tuple[str, int]] = {}
    for session_id, message in sorted(rows, key=lambda row: row[1].seq or 0):
        if message.text.strip():  # one that only called tools said nothing
            of[message.id] = (session_id, message.seq or 0)
            said.setdefault(session_id, {})[message.seq or 0] = message
    best: dict[str, Ranked] = {}
    hits: dict[str, set[int]] = {}
    shown: dict[str, set[int]] = {}
    for one in ranked:
        if str(one.key) not in of:
            continue
        session_id, seq = of[str(one.key)]
        if session_id not in best and len(best) == limit:
            continue
        seqs = list(said[session_id])
        place = seqs.index(seq)
        around = seqs[max(0, place - AROUND) : place + AROUND + 1]
        window = {n for n in around if abs(n - seq) <= WINDOW} | shown.get(session_id, set())
        if session_id in best and (len(window) > OF_ONE or not one.strong):
            continue
        best.setdefault(session_id, one)
        shown[session_id] = window
        hits.setdefault(session_id, set()).add(seq)
    return [
        (name, one.score, one.strong, hits[name], [(n, said[name][n]) for n in sorted(shown[name])])
        for name, one in best.items()
    ]
