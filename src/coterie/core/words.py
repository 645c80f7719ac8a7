"""Words as the index and every question see them: one folding for both, in linear time.

Case, accents and endings do not tell words apart. Where a script has no spaces, neighbouring characters stand for words.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

LONGEST = 50_000
"""Characters of one text that are indexed."""
LONGEST_WORD = 64

FUNCTION_WORDS = {
    "english": "a about an and any are as at be been being both but by can could d did do does doing each for "
    "from had has have having he hello her here hey hi him his how i if in is it its just ll m may me might must "
    "my no not of ok okay on or our please re s shall she should so some such t than thanks that the their them "
    "then there these they this those to too ve very was we were what when where which who whom whose why will "
    "with would you your also again remember recall know tell told say said",
    "german": "aber als auch auf aus bei bin bist das dass dein deine dem den der des die du durch ein eine einem "
    "einen einer es fur hat haben hatte ich ihr im ist ja kein keine mein meine mich mir mit nach nicht noch nur oder "
    "sehr sich sie sind uber um und uns unser vom von vor wann war warum was welche welcher wenn wer wie wir wird wo "
    "zu zum zur",
    "french": "au aux avec ce cette c ces dans de des du elle elles en est et etait etre eux il ils j je l la le les "
    "leur lui ma mais me mes moi mon n ne nos notre nous ou par pas pour qu quand que quel quelle qui sa se ses son "
    "sont sur ta te tes toi ton tu un une vos votre vous y",
    "spanish": "al como con cual cuando de del donde el ella ellos en era es esta este esto fue ha hay la las lo los "
    "mas me mi mis muy no nos para pero por porque que quien se si sin sobre son su sus te tiene tu un una y yo",
    "italian": "al alla anche che chi ci come con cosa da dal dei del della delle di dove e ed era gli ha ho i il in io "
    "la le lei lo loro lui ma mi mia mio ne nel nella noi non per perche piu quale quando quello questa questo se si "
    "sono su sua suo ti tu un una uno",
    "portuguese": "ao aos as com como da das de dela dele do dos e ela ele em era essa esse esta este eu foi ha isso "
    "isto ja lhe mais mas me meu minha muito na nao nas no nos o onde os ou para pela pelo por qual quando que quem se "
    "sem ser seu sua tem um uma voce",
    "dutch": "aan als bij dan dat de der deze die dit door een en er geen haar had heb hebben heeft het hij hoe ik in "
    "is ja je jij maar me met mij mijn naar niet nog of om ons ook op te tot uit van voor waar wanneer waren was wat "
    "we wel welke wie wij ze zij zijn zou",
}
"""By language: words that say how, not what. They tell languages apart, and nobody looks for them."""
STOP_WORDS = frozenset(FUNCTION_WORDS["english"].split())

_FILLERS = {language: frozenset(words.split()) for language, words in FUNCTION_WORDS.items()}
_LANGUAGES: dict[str, tuple[str, ...]] = {}
for _language, _words in _FILLERS.items():
    for _word in _words:
        if _language == "english" or len(_word) > 1:
            _LANGUAGES[_word] = (*_LANGUAGES.get(_word, ()), _language)
_FOREIGN = frozenset(_LANGUAGES) - STOP_WORDS
"""Where a text has none of these, it is taken for English."""

_SCRIPTS = (
    ("\u0370", "\u03ff", "greek"),
    ("\u0400", "\u052f", "russian"),
    ("\u0531", "\u058f", "armenian"),
    ("\u05d0", "\u05ea", None),
    ("\u0621", "\u06ff", "arabic"),
    ("\u0900", "\u097f", "hindi"),
    ("\u0b80", "\u0bff", "tamil"),
)
"""Where a script is one language's, more or less; None: nothing is known of its endings."""

# Chinese, Japanese, Korean, Thai, Lao, Burmese, Khmer: words are not set apart, or carry their particles with them.
_UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u1049\u1050-\u109f\u1100-\u11ff\u1780-\u17d3\u2e80-\u2fdf\u3005-\u3007"
    "\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f"
    "\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs of Indian scripts belong to their words, though they are no letters.
_LETTER = r"[^\W_]|[\u0900-\u0963\u0966-\u0df3\u0300-\u036f]"
_NAMED = r"(?<![a-z0-9])[a-z]{1,2}(?:\+\+|\#)(?![a-z0-9])|\.net(?![a-z0-9])"
_ASCII = re.compile(rf"{_NAMED}|[a-z0-9]+")
_ANY = re.compile(rf"{_NAMED}|[{_UNSPACED}]+|(?:(?![{_UNSPACED}])(?:{_LETTER}))+")
_RUN = re.compile(f"[{_UNSPACED}]")
_SINGLE = re.compile(r"(?<![^\W_'’])[B-HJ-Z](?![^\W_'’.+#-])")
_POSSESSIVE = re.compile(r"['’]s(?![^\W_])")
_SHORT_I = "\u0438\u0306"
_SENTENCE = re.compile(r"[^.!?。！？؟\n]*(?:[.!?。！？؟\n]+|$)")


def cleaned(text: str) -> str:
    """In lower case, without accents and possessive endings."""
    if text.isascii():
        return _POSSESSIVE.sub("", text.lower())
    apart = unicodedata.normalize("NFKD", text.casefold())
    # A short i is a letter of its own in Russian, and endings are told by it.
    apart = apart.replace(_SHORT_I, "\ue000")
    kept = "".join(c for c in apart if not _is_accent(c)).replace("\ue000", "\u0439").replace("\u0640", "")
    return _POSSESSIVE.sub("", unicodedata.normalize("NFC", kept))


def split(text: str) -> list[str]:
    """The words of a text, as they are written; runs of characters without spaces in one piece."""
    lowered = cleaned(text)
    return (_ASCII if lowered.isascii() else _ANY).findall(lowered)


def folded(text: str) -> list[str]:
    """Under which words a text is indexed, in its order."""
    text = text[:LONGEST]
    words = split(text)
    language = None if _FOREIGN.isdisjoint(words) else _language_of(words)
    if language is None and text.isascii():
        found = [stem(word) for word in words]
        if ".net" in found:
            found.append("net")
        return found
    found = []
    for word in words:
        if word.isascii():
            found.append(stem(word))
            if word == ".net":
                found.append("net")
            if language is not None:
                other = stem(word, language)
                if other != found[-1]:
                    found.append(other)
        elif _RUN.match(word):
            found += word
            found += _pairs(word)
        else:
            found.append(stem(word, script_language(word)))
    return found


def asked(text: str) -> dict[str, tuple[str, ...]]:
    """The words of a question, each with the words of the index that it means. Words that say nothing are left out."""
    text = text[:LONGEST]
    words = split(text)
    single = {letter.lower() for letter in _SINGLE.findall(text)}
    languages = spoken(words)
    fillers = [_FILLERS[language] for language in languages or ("english",)]
    found: dict[str, tuple[str, ...]] = {}
    spare: dict[str, tuple[str, ...]] = {}
    for word in words:
        if _RUN.match(word):
            for part in _pairs(word) or [word]:
                found[part] = (part,)
            continue
        forms = _forms(word, languages or tuple(FUNCTION_WORDS))
        alone = len(word) == 1 and word.isascii() and not word.isdigit() and word not in single
        if alone or len(word) > LONGEST_WORD or any(word in some for some in fillers):
            if not alone:
                spare[word] = forms
        else:
            found[word] = forms
    return _merged(found or spare)


def spoken(words: Iterable[str]) -> tuple[str, ...]:
    """Languages in which a question may be meant: English, and the one that its small words tell; none if none do."""
    words = list(words)
    language = _language_of(words)
    if language is not None:
        return ("english", language)
    if any("english" in _LANGUAGES.get(word, ()) for word in words):
        return ("english",)
    return ()


def sentences(text: str) -> Iterator[str]:
    for match in _SENTENCE.finditer(text):
        if sentence := match.group().strip():
            yield sentence


def script_language(word: str) -> str | None:
    """Whose endings a word has that is not in plain Latin letters."""
    for first, last, language in _SCRIPTS:
        if first <= word[0] <= last:
            return language
    return "english"


@lru_cache(maxsize=100_000)
def stem(word: str, language: str | None = "english") -> str:
    if len(word) > LONGEST_WORD:
        return word[:LONGEST_WORD]
    # What has digits in it is a name or a number, and has no other forms.
    if language is None or (not word.isalpha() and any(map(str.isdigit, word))):
        return word
    return _stemmer(language)(word)


def _forms(word: str, languages: Sequence[str]) -> tuple[str, ...]:
    if not word.isascii():
        return (stem(word, script_language(word)),)
    return tuple(dict.fromkeys(stem(word, language) for language in languages))


def _merged(found: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Two forms of one word are one."""
    kept: dict[str, tuple[str, ...]] = {}
    seen: set[str] = set()
    for word, forms in found.items():
        if forms[0] not in seen:
            seen.add(forms[0])
            kept[word] = forms
    return kept


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)]


def _language_of(words: Iterable[str]) -> str | None:
    """Which language but English the small words of a text speak for; None where English has as many."""
    counts: dict[str, int] = {}
    for word in words:
        for language in _LANGUAGES.get(word, ()):
            counts[language] = counts.get(language, 0) + 1
    if not counts:
        return None
    best = max(counts, key=lambda language: counts[language])
    return best if counts[best] > counts.get("english", 0) else None


def _is_accent(character: str) -> bool:
    """Marks that readers do without: accents, and the vowel points of Arabic and Hebrew."""
    place = unicodedata.combining(character)
    return place >= 200 or 10 <= place <= 36


_own = threading.local()


def _stemmer(language: str) -> Callable[[str], str]:
    """Each thread's own: a stemmer keeps the word it works on, and would mix up those of two threads."""
    made: dict[str, Callable[[str], str]] = _own.__dict__
    if language not in made:
        import Stemmer

        made[language] = Stemmer.Stemmer(language, 0).stemWord
    return made[language]
