"""Which of the passages that were found answer a question best: words, meaning, neighbours and time, in one score.

Pure and the same for both databases: those only find candidates. The weights were measured with `make evals`;
the figures change little around them.
"""

from __future__ import annotations

import math
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

from coterie.core.memory import Via
from coterie.core.time_words import Span, spans, wanted

MAX_WORDS = 48
"""Words of a question that are looked up; the first ones, for nobody asks with more."""
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

STOP_WORDS = frozenset(
    [
        "a",
        "about",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "be",
        "been",
        "being",
        "both",
        "but",
        "by",
        "can",
        "could",
        "d",
        "did",
        "do",
        "does",
        "doing",
        "each",
        "for",
        "from",
        "had",
        "has",
        "have",
        "having",
        "he",
        "hello",
        "her",
        "here",
        "hey",
        "hi",
        "him",
        "his",
        "how",
        "i",
        "if",
        "in",
        "is",
        "it",
        "its",
        "just",
        "ll",
        "m",
        "may",
        "me",
        "might",
        "must",
        "my",
        "no",
        "not",
        "of",
        "ok",
        "okay",
        "on",
        "or",
        "our",
        "please",
        "re",
        "s",
        "shall",
        "she",
        "should",
        "so",
        "some",
        "such",
        "t",
        "than",
        "thanks",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "to",
        "too",
        "ve",
        "very",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "whom",
        "whose",
        "why",
        "will",
        "with",
        "would",
        "you",
        "your",
        "also",
        "again",
        "remember",
        "recall",
        "know",
        "tell",
        "told",
        "say",
        "said",
    ]
)
_WORD = re.compile(r"\w+")
_POSSESSIVE = re.compile(r"['’]s\b")
_SPOKEN = re.compile(r"[\w'’]+")
_LABEL = re.compile(r"^(?:[\[(][^\])]{1,60}[\])]\s*)?([\w .'’-]{1,40}?)(?: said| says| asked)?: ")


@dataclass(frozen=True, slots=True)
class Question:
    """A query, cleaned of everything that a query language could trip over."""

    words: tuple[str, ...]
    """Lower case, without stop words, each once."""
    times: tuple[Span, ...] = ()

    @property
    def time_words(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(word for span in self.times for word in wanted(span)))

    @classmethod
    def read(cls, text: str, today: date) -> Question:
        found = list(dict.fromkeys(split(text)))
        kept = [w for w in found if w not in STOP_WORDS and (len(w) > 1 or w.isdigit() or not w.isascii())]
        return cls(tuple((kept or [w for w in found if len(w) > 1])[:MAX_WORDS]), spans(text, today))


@dataclass(frozen=True, slots=True)
class Terms:
    """A passage as the score sees it."""

    counts: Mapping[str, int]
    length: int
    asks: bool


@dataclass(frozen=True, slots=True)
class Passage:
    """A candidate, or a neighbour of one."""

    key: int | str
    text: str
    moment: str
    thread: str | None = None
    """Passages of one thread and neighbouring places stand side by side."""
    place: int = 0
    similarity: float | None = None
    """Cosine with the question; None where no vector is known."""
    own: bool = True
    pinned: bool = False


@dataclass(frozen=True, slots=True)
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


def rank(
    question: Question,
    passages: Sequence[Passage],
    known: Known,
    *,
    text: bool = True,
    vectors: bool = True,
) -> list[Ranked]:
    """Best first. What neither words nor meaning nor time speak for is left out."""
    if not passages:
        return []
    terms = [terms_of(passage.key, passage.text) for passage in passages]
    around = _neighbours(passages)
    stems: dict[str, float] = {}
    for word in question.words:
        # Two forms of one word count once, as the rarer of the two.
        stems[stem(word)] = max(stems.get(stem(word), 0.0), known.rarity(word))
    words, covered, nearly = _by_words(stems, terms, around) if text else _nothing(passages)
    similar = [passage.similarity or 0.0 for passage in passages]
    meaning = [
        value + sum(NEAR_MEANING * similar[other] for other, distance in around[i] if abs(distance) == 1)
        for i, value in enumerate(similar)
    ]
    best_words, best_meaning = max(words) or 1.0, max(meaning)
    weight = MEANING if text else 1.0
    found: list[tuple[float, str, str, Ranked]] = []
    for i, passage in enumerate(passages):
        score = words[i] / best_words + COVERAGE * covered[i]
        by_meaning = vectors and similar[i] > (UNLIKE if text else 0.0)
        if vectors and passage.similarity is not None and best_meaning > 0:
            score += weight * meaning[i] / best_meaning
        timely = any(span.holds(passage.moment) for span in question.times)
        if not (words[i] or by_meaning or timely):
            continue
        score += TIME * timely + PINNED * passage.pinned + OWN * passage.own
        if terms[i].asks and text:
            score -= QUESTION
        via: tuple[Via, ...] = (
            *(("text",) if covered[i] else ("near",) if words[i] else ()),
            *(("vector",) if by_meaning else ()),
            *(("time",) if timely else ()),
        )
        strong = nearly[i] >= 0.4 or similar[i] >= 0.5 or (timely and not question.words)
        ranked = Ranked(passage.key, round(score, 6), via, strong)
        found.append((-ranked.score, _reversed(passage.moment), passage.text, ranked))
    found.sort(key=lambda item: item[:3])
    return [item[3] for item in found]


def split(text: str) -> list[str]:
    """Words in lower case, without accents and possessive endings."""
    lowered = _POSSESSIVE.sub("", text.lower())
    if not lowered.isascii():
        lowered = "".join(c for c in unicodedata.normalize("NFKD", lowered) if not unicodedata.combining(c))
    return _WORD.findall(lowered)


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


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    return _stemmer()(word)


@lru_cache(maxsize=6_000)
def terms_of(key: int | str, text: str) -> Terms:
    """Counted once: a passage that changes gets another key."""
    counts = Counter(stem(word) for word in split(text))
    return Terms(counts, sum(counts.values()), text.rstrip().endswith("?"))


_own = threading.local()


def _stemmer() -> Callable[[str], str]:
    """Each thread's own: a stemmer keeps the word it works on, and would mix up those of two threads."""
    made: Callable[[str], str] | None = getattr(_own, "stem", None)
    if made is None:
        import snowballstemmer

        made = _own.stem = snowballstemmer.stemmer("english").stemWord
    assert made is not None
    return made


def _neighbours(passages: Sequence[Passage]) -> list[list[tuple[int, int]]]:
    """For each passage the others within the window, with their distance."""
    places = {(p.thread, p.place): i for i, p in enumerate(passages) if p.thread is not None}
    found: list[list[tuple[int, int]]] = []
    for passage in passages:
        near = []
        if passage.thread is not None:
            for distance in (*range(-WINDOW, 0), *range(1, WINDOW + 1)):
                other = places.get((passage.thread, passage.place + distance))
                if other is not None:
                    near.append((other, distance))
        found.append(near)
    return found


def _by_words(
    stems: Mapping[str, float], terms: Sequence[Terms], around: Sequence[Sequence[tuple[int, int]]]
) -> tuple[list[float], list[float], list[float]]:
    """BM25 over each passage together with its neighbours, and which share of the question it holds itself."""

    def share(distance: int) -> float:
        return (BEFORE if distance < 0 else AFTER) * DECAY ** (abs(distance) - 1)

    near = [[(other, share(distance)) for other, distance in one] for one in around]
    lengths = [
        one.length + sum(part * terms[other].length for other, part in near[i]) for i, one in enumerate(terms)
    ]
    usual = sum(lengths) / len(lengths) or 1.0
    whole = sum(stems.values()) or 1.0
    scores, covered, nearly = [], [], []
    for i, one in enumerate(terms):
        room = SATURATION * (1 - LENGTH + LENGTH * lengths[i] / usual)
        score = own = close = 0.0
        for word, rarity in stems.items():
            count: float = one.counts.get(word, 0)
            if count:
                own += rarity
            for other, part in near[i]:
                here = terms[other].counts.get(word)
                if here:
                    count += part * here
            if count:
                close += rarity
                score += rarity * count * (SATURATION + 1) / (count + room)
        scores.append(score)
        covered.append(own / whole)
        nearly.append(max(own, 0.7 * close) / whole)
    return scores, covered, nearly


def _nothing(passages: Sequence[Passage]) -> tuple[list[float], list[float], list[float]]:
    zero = [0.0] * len(passages)
    return zero, zero, zero


def _reversed(moment: str) -> str:
    """Sorts newer moments first."""
    return "".join(chr(0x10FFFF - ord(c)) for c in moment[:32])
