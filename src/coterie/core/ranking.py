"""Which of the passages that were found answer a question best: words, meaning, neighbours and time, in one score.

Pure and the same for both databases: those only find candidates. The weights were measured with `make evals`;
the figures change little around them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from coterie.core.memory import Via
from coterie.core.time_words import Span, spans, wanted
from coterie.core.words import STOP_WORDS, asked, folded, sentences, split

MAX_WORDS = 48
"""Words of a question that are looked up."""
FOCUS_WORDS = 16
"""Of each sentence that may be what a long message asks."""
LONGEST_QUESTION = 32_000
"""Characters of a message that are read, most of them from its end."""
WINDOW = 3
"""Neighbours on each side whose words count for a passage."""
BEFORE, AFTER, DECAY = 0.8, 0.56, 0.6
"""How much the next neighbour's words count, before and after; those further away less and less."""
SATURATION, LENGTH = 0.8, 0.5
"""BM25's k1 and b."""
COVERAGE = 0.15
MEANING = 0.5
"""How much the vectors count beside the words."""
NEAR_MEANING = 0.1
UNLIKE = 0.2
"""Vectors no closer than this have nothing to do with each other."""
QUESTION = 0.15
"""A passage that asks rarely answers."""
TIME = 0.4
PINNED = 0.05
OWN = 0.15
"""What a reader said itself comes before what others shared."""
COMMON = 0.2
"""Words in more than this share of all passages say little about any."""

_SPOKEN = re.compile(r"[\w'’]+")
_LABEL = re.compile(r"^(?:[\[(][^\])]{1,60}[\])]\s*)?([\w .'’-]{1,40}?)(?: said| says| asked)?: ")


@dataclass(frozen=True, slots=True)
class Question:
    """A query, cleaned of everything that a query language could trip over."""

    forms: Mapping[str, tuple[str, ...]]
    """Its telling words, each once, with the words of the index that each means."""
    times: tuple[Span, ...] = ()
    focus: tuple[frozenset[str], ...] = ()
    """Of a long message, the words of each sentence that may be what it asks: what answers one is near enough."""

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.forms)

    @property
    def time_words(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(word for span in self.times for word in wanted(span)))

    @classmethod
    def read(cls, text: str, today: date) -> Question:
        if len(text) > LONGEST_QUESTION:
            text = f"{text[: LONGEST_QUESTION // 4]}\n{text[-LONGEST_QUESTION * 3 // 4 :]}"
        forms = asked(text)
        if len(forms) <= MAX_WORDS:
            return cls(forms, spans(text, today))
        points = points_of(text)
        focus = (frozenset(list(asked(point))[-FOCUS_WORDS:]) & forms.keys() for point in points)
        return cls(forms, spans(" ".join(points), today), tuple(filter(None, focus)))

    def narrowed(self, found_in: Mapping[str, int], most: int = MAX_WORDS) -> Question:
        """Its most telling words: what it asks first, then what fewest have."""
        if len(self.forms) <= most:
            return self
        point = frozenset[str]().union(*self.focus)
        telling = sorted(
            (word for word in self.forms if word in point or found_in.get(word)),
            key=lambda word: (word not in point, found_in.get(word, 0)),
        )[:most]
        return Question({word: self.forms[word] for word in telling}, self.times, self.focus)


def points_of(text: str) -> list[str]:
    """What a long message may ask: its first and last questions, or else how it begins and ends."""
    every = list(sentences(text))
    asking = [one for one in every if one.endswith(("?", "？", "؟"))] or every
    return list(dict.fromkeys([*asking[:1], *asking[-2:]]))


@dataclass(frozen=True, slots=True)
class Terms:
    """A passage as the score sees it."""

    counts: Mapping[str, int]
    length: int
    asks: bool

    @classmethod
    def of(cls, text: str) -> Terms:
        words = folded(text)
        return cls(Counter(words), len(words), asks(text))


@dataclass(slots=True)  # not frozen: a search makes hundreds
class Passage:
    """A candidate, or a neighbour of one."""

    key: int | str
    terms: Terms
    moment: str
    thread: str | None = None
    """Passages of one thread and neighbouring places stand side by side."""
    place: int = 0
    similarity: float | None = None
    """Cosine with the question; None where no vector is known."""
    own: bool = True
    pinned: bool = False


@dataclass(slots=True)
class Ranked:
    key: int | str
    score: float
    via: tuple[Via, ...]
    strong: bool


@dataclass(frozen=True, slots=True)
class Known:
    """How rare each word is among everything that the reader may see."""

    total: int
    found_in: Mapping[str, int]

    def rarity(self, word: str) -> float:
        count = min(self.found_in.get(word, 0), self.total)
        return math.log(1 + (self.total - count + 0.5) / (count + 0.5))

    def is_common(self, word: str) -> bool:
        return self.total > 20 and self.found_in.get(word, 0) > COMMON * self.total


_TEXT: tuple[tuple[Via, ...], ...] = ((), ("near",), ("text",))
_VIA: dict[tuple[int, bool, bool], tuple[Via, ...]] = {
    (text, vector, time): (*_TEXT[text], *(("vector",) if vector else ()), *(("time",) if time else ()))
    for text in (0, 1, 2)
    for vector in (False, True)
    for time in (False, True)
}
"""By its words itself, or only its neighbours'; by its meaning; by its time."""


def rank(
    question: Question,
    passages: Sequence[Passage],
    known: Known,
    *,
    text: bool = True,
    vectors: bool = True,
    most: int | None = None,
) -> list[Ranked]:
    """Best first, at most so many. What neither words nor meaning nor time speak for is left out."""
    if not passages:
        return []
    import numpy as np

    around = _neighbours(passages)
    words, covered, nearly = _by_words(question, passages, known, around) if text else _nothing(passages)
    similar = np.array([passage.similarity or 0.0 for passage in passages])
    meaning = similar.copy()
    if around is not None:
        here, there, distance = around
        beside = np.abs(distance) == 1
        np.add.at(meaning, here[beside], NEAR_MEANING * similar[there[beside]])
    scores = words / (words.max() or 1.0) + COVERAGE * covered
    if vectors and meaning.max() > 0:
        known_meaning = np.array([passage.similarity is not None for passage in passages])
        scores += known_meaning * (MEANING if text else 1.0) * meaning / meaning.max()
    alike = (similar > (UNLIKE if text else 0.0)) & vectors
    near_enough = (nearly >= 0.4) | (similar >= 0.5)
    timely = np.zeros(len(passages), bool)
    if question.times:
        timely = np.array([any(span.holds(p.moment) for span in question.times) for p in passages])
        scores += TIME * timely
    scores += [
        PINNED * p.pinned + OWN * p.own - (QUESTION if text and p.terms.asks else 0.0) for p in passages
    ]
    rounded = scores.round(6).tolist()
    order = np.flatnonzero((words > 0) | alike | timely).tolist()
    order.sort(key=lambda place: passages[place].moment, reverse=True)
    order.sort(key=rounded.__getitem__, reverse=True)
    # Plain lists: a place of an array costs as much to look at as the rest of a line.
    of_text = np.where(covered > 0, 2, words > 0).tolist()
    of_vector, of_time, near = alike.tolist(), timely.tolist(), near_enough.tolist()
    found: list[Ranked] = []
    for place in order[:most]:
        via = _VIA[of_text[place], of_vector[place], of_time[place]]
        strong = near[place] or (of_time[place] and not question.forms)
        found.append(Ranked(passages[place].key, rounded[place], via, strong))
    return found


def asks(text: str) -> bool:
    return text.rstrip().endswith("?")


def gist(text: str) -> str:
    """What a model that only averages word vectors should see: no speaker's label, no filler words."""
    match = _LABEL.match(text)
    body = text if match is None else text[match.end() :]
    kept = [word for word in _SPOKEN.findall(body) if word.lower() not in STOP_WORDS]
    return " ".join(kept) or body


def speakers(texts: Iterable[str]) -> frozenset[str]:
    """Words of the names under which things were said, as in "Caroline: hello"."""
    found: set[str] = set()
    for text in texts:
        match = _LABEL.match(text[:120])
        if match is not None and match.group(1).count(" ") < 3:
            found.update(split(match.group(1)))
    return frozenset(found)


def _neighbours(passages: Sequence[Passage]) -> tuple[Any, Any, Any] | None:
    """Pairs of passages within the window of each other, and how far the second stands behind the first."""
    import numpy as np

    places = {(p.thread, p.place): i for i, p in enumerate(passages) if p.thread is not None}
    if not places:
        return None
    found = [
        (here, there, distance)
        for (thread, place), here in places.items()
        for distance in range(-WINDOW, WINDOW + 1)
        if distance and (there := places.get((thread, place + distance))) is not None
    ]
    return tuple(np.array(found, np.int64).reshape(-1, 3).T)  # type: ignore[return-value]


def _by_words(
    question: Question, passages: Sequence[Passage], known: Known, around: tuple[Any, Any, Any] | None
) -> tuple[Any, Any, Any]:
    """BM25 over each passage together with its neighbours, and which share of the question it holds itself."""
    import numpy as np

    rarity = np.array([known.rarity(word) for word in question.forms])
    groups = list(question.forms.values())
    found = [p.terms.counts.get for p in passages]
    counts = np.zeros((len(passages), len(groups)))
    if groups:
        forms = np.array([[get(form, 0) for get in found] for group in groups for form in group], float)
        first = np.cumsum([0, *map(len, groups[:-1])])
        counts = np.maximum.reduceat(forms, first).T
    lengths = np.array([float(p.terms.length) for p in passages])
    mine, close, long = counts > 0, counts, lengths
    if around is not None:
        here, there, distance = around
        share = np.where(distance < 0, BEFORE, AFTER) * DECAY ** (np.abs(distance) - 1.0)
        close, long = counts.copy(), lengths.copy()
        np.add.at(close, here, share[:, None] * counts[there])
        np.add.at(long, here, share * lengths[there])
    room = SATURATION * (1 - LENGTH + LENGTH * long / (long.mean() or 1.0))
    # An empty passage has no room, and no words either.
    parts = close * (SATURATION + 1) / (close + np.maximum(room, 1e-9)[:, None])
    covered = (mine @ rarity) / (rarity.sum() or 1.0)
    nearly = np.maximum(covered, 0.7 * ((close > 0) @ rarity) / (rarity.sum() or 1.0))
    for focus in question.focus:
        point = rarity * [word in focus for word in question.forms]
        nearly = np.maximum(nearly, (mine @ point) / (point.sum() or 1.0))
    return parts @ rarity, covered, nearly


def _nothing(passages: Sequence[Passage]) -> tuple[Any, Any, Any]:
    import numpy as np

    zero = np.zeros(len(passages))
    return zero, zero, zero
