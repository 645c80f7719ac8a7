"""Finding memories and past conversations: the store names candidates, `core/ranking.py` puts them in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from coterie.core.duplicates import distinct
from coterie.core.errors import Unavailable
from coterie.core.fence import speaker
from coterie.core.memory import Filters, Hit, Reader, Turns
from coterie.core.message import Message
from coterie.core.ports import Embedder
from coterie.core.ranking import MAX_WORDS, WINDOW, Known, Passage, Question, Ranked, Terms, points_of, rank

if TYPE_CHECKING:
    from coterie.store.transaction import Store, Transaction
    from coterie.store.vectors import Entry, Outline

log = logging.getLogger("coterie.memory")

Mode = Literal["hybrid", "text", "vector"]

PER_WORD = 20_000
"""Memories that one word may bring up, the newest; a word that has more tells little."""
PAIRS = 6
"""Of words that have more: how many pairs are looked up, for what holds both is rare again."""
COUNTED = 200
"""Up to how many a word of a long message is counted, to tell which words are its most telling."""
COUNTED_WORDS = 400
CANDIDATES = 60
"""Of those that words and meaning bring up, how many are looked at closely."""
NEAREST = 40
SMALL = 1_000
"""So few memories are counted at every search."""
COUNT_SECONDS = 30
DUPLICATES = 5
"""Of how many near-duplicates each hit may be the best."""
MESSAGES_PER_WORD = 500
MESSAGES = 50
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
        vector, model = None, ""
        embedder = self._embedder() if mode != "text" else None
        if embedder is not None and not embedder.averages:
            # Perhaps far away: no transaction waits for it.
            vector, model = self._vector(question, query, Known(0, {}), patient, frozenset())
        with self._store.read() as tx:
            total = self._total(reader, tx)
            if not total:
                return []
            question = self._narrowed(tx, reader, question, filters)
            chosen, known = self._look_up(tx, reader, question, filters, total, max(CANDIDATES, 2 * limit))
            entries = tx.memories.entries(reader, chosen)
            if embedder is not None and embedder.averages:
                names = frozenset(name for entry in entries.values() for name in entry.names)
                vector, model = self._vector(question, query, known, patient, names)
            similar: Mapping[int, float] = {}
            nearness = None
            if vector is not None:
                nearness = tx.memories.compared(reader, model, vector)
                # Filters are applied afterwards: many more are looked at.
                count = max(NEAREST, limit)
                wanted = nearness.nearest(count * 20 if filters.any else count).tolist()
                if filters.any:
                    kept = tx.memories.allowed(wanted, filters)
                    wanted = [number for number in wanted if number in kept][:count]
                entries |= tx.memories.entries(reader, [n for n in wanted if n not in entries])
            if any(entry.thread is not None for entry in entries.values()):
                near = tx.memories.neighbours(reader, list(entries))
                entries |= tx.memories.entries(reader, [n for n in near if n not in entries])
            if nearness is not None and vector is not None:
                similar = nearness.of(list(entries))
                apart = [number for number in entries if number not in similar]
                if apart:
                    similar |= tx.memories.similarities(reader, model, vector, apart)
            passages = [
                _passage(reader, number, entry, similar.get(number)) for number, entry in entries.items()
            ]
            ranked = rank(
                question,
                passages,
                known,
                text=mode != "vector",
                vectors=vector is not None,
                most=None if filters.any or without_file else limit * DUPLICATES,
            )
            if filters.any:
                allowed = tx.memories.allowed(list(entries), filters)
                ranked = [one for one in ranked if one.key in allowed]
            return _hits(tx, reader, ranked, limit, without_file)

    def conversations(
        self, reader: Reader, query: str, *, limit: int, apart_from: str | None = None, words: int = 48
    ) -> list[Turns]:
        """What was said in turns that the reader's agent ran for its audience, with the messages around each hit."""
        question = Question.read(query, date.today())
        with self._store.read() as tx:

            def find(asked: Sequence[str], limit: int) -> dict[str, list[str]]:
                forms = [question.forms[word] for word in asked]
                found = tx.conversations.find(reader, forms, apart_from=apart_from, limit=limit)
                return dict(zip(asked, found, strict=True))

            if len(question.forms) > words:
                counted = find(_ends(question.words), COUNTED // 10)
                question = question.narrowed({word: len(ids) for word, ids in counted.items()}, words)
            lists = find(question.words, MESSAGES_PER_WORD)
            found_in = {word: len(found) for word, found in lists.items()}
            known = Known(3 * max(found_in.values(), default=0) + 100, found_in)
            chosen = strongest(lists, known, MESSAGES)
            rows = tx.conversations.passages(reader, chosen)
            passages = [
                Passage(
                    message.id,
                    _terms(message.id, message.text),
                    message.created_at,
                    session_id,
                    message.seq or 0,
                )
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

    def _narrowed(self, tx: Transaction, reader: Reader, question: Question, filters: Filters) -> Question:
        """Of a long message, its most telling words."""
        if len(question.forms) <= MAX_WORDS:
            return question
        words = _ends(question.words)
        found = tx.memories.find(reader, [[question.forms[word]] for word in words], filters, COUNTED)
        return question.narrowed({word: len(numbers) for word, numbers in zip(words, found, strict=True)})

    def _look_up(
        self, tx: Transaction, reader: Reader, question: Question, filters: Filters, total: int, most: int
    ) -> tuple[list[int], Known]:
        """What holds the rarest words of a question, and the most of them; and how rare each is."""
        import numpy as np

        words = [*question.words, *question.time_words]
        forms = [question.forms.get(word, (word,)) for word in words]
        lists = tx.memories.find(reader, [[form] for form in forms], filters, PER_WORD)
        counts = [len(found) for found in lists]
        known = Known(max(total, *counts, 0), dict(zip(words, counts, strict=True)))
        weights = [known.rarity(word) for word in words]
        everywhere = [place for place, count in enumerate(counts) if count == PER_WORD]
        if len(everywhere) > 1:
            pairs = list(pairwise(everywhere))[:PAIRS]
            lists += tx.memories.find(reader, [[forms[a], forms[b]] for a, b in pairs], filters, most)
            weights += [weights[a] + weights[b] for a, b in pairs]
        if not sum(map(len, lists)):
            return [], known
        numbers, places = np.unique(np.concatenate(lists), return_inverse=True)
        each = np.repeat(weights, [len(found) for found in lists])
        scores = np.bincount(places, each, len(numbers))
        # Of equals, the newest.
        best = np.lexsort((-numbers, -scores))[:most] if len(numbers) > most else slice(None)
        return numbers[best].tolist(), known

    def _total(self, reader: Reader, tx: Transaction) -> int:
        """Only a weight: that of many memories may be some seconds old."""
        at, total = self._totals.get(reader, (0.0, 0))
        if total < SMALL or time.monotonic() - at > COUNT_SECONDS:
            total = tx.memories.total(reader)
            if len(self._totals) > 10_000:
                self._totals.clear()
            self._totals[reader] = (time.monotonic(), total)
        return total

    def _vector(
        self, question: Question, query: str, known: Known, patient: bool, names: frozenset[str]
    ) -> tuple[bytes | None, str]:
        """Of the question. An average of words leaves out those that would drown the others: names of speakers,
        and what everybody says."""
        embedder = self._embedder()
        if embedder is None or not (patient or embedder.ready):
            return None, ""
        text = " ".join(points_of(query)) if question.focus else query
        if embedder.averages:
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


def strongest(lists: Mapping[str, Sequence[str]], known: Known, limit: int) -> list[str]:
    """What holds the rarest words of a question, and the most of them."""
    scores: dict[str, float] = {}
    for word in sorted(lists, key=lambda word: (len(lists[word]), word)):
        rarity = known.rarity(word)
        for key in lists[word]:
            scores[key] = scores.get(key, 0.0) + rarity
    return sorted(scores, key=lambda key: scores[key], reverse=True)[:limit]


def _ends(words: Sequence[str]) -> Sequence[str]:
    """Of very many words those at the beginning and, most of them, at the end."""
    if len(words) <= COUNTED_WORDS:
        return words
    return [*words[: COUNTED_WORDS // 4], *words[-COUNTED_WORDS * 3 // 4 :]]


@lru_cache(maxsize=2_000)
def _terms(message_id: str, text: str) -> Terms:
    return Terms.of(text)


def _passage(reader: Reader, number: int, entry: Entry, similarity: float | None) -> Passage:
    thread = None if entry.thread is None else f"{entry.owner}\n{entry.thread}"
    own = entry.owner == reader.agent_id
    return Passage(number, entry.terms, entry.moment, thread, entry.place, similarity, own, entry.pinned)


def _hits(
    tx: Transaction, reader: Reader, ranked: Sequence[Ranked], limit: int, without_file: str | None
) -> list[Hit]:
    """The rows of the best. Near-duplicates collapse into the newest of them, in the place of the best; their rows stay."""
    by_key = {int(one.key): one for one in ranked}
    left, most = list(by_key), limit * DUPLICATES
    outlines: dict[int, Outline] = {}

    def newness(key: int) -> tuple[object, ...]:
        """What happened at the time that was asked for comes before what happened later."""
        return "time" in by_key[key].via, outlines[key].moment, outlines[key].created_at

    while True:
        for start in range(0, len(left), most):
            some = tx.memories.outlines(reader, left[start : start + most])
            outlines |= {n: o for n, o in some.items() if without_file is None or o.file != without_file}
            if len(outlines) >= most:
                break
        found = [key for key in left if key in outlines][:most]
        shown = distinct(found, {key: outlines[key].essence for key in found}, newness, limit)
        memories = tx.memories.numbered(reader, [key for key, _ in shown])
        gone = {key for key, _ in shown if key not in memories}
        if not gone:
            break
        left = [key for key in left if key not in gone]
    return [
        Hit(memories[key], by_key[best].score, by_key[key].via, by_key[best].strong) for key, best in shown
    ]


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
