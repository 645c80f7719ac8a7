"""Text from anywhere, made safe to show: nothing in it moves the cursor, fills the clipboard, runs backwards or hides."""

from __future__ import annotations

import re

# Controls, and what Unicode calls ignorable: it shows nothing itself, and makes names look alike that are not.
_HIDDEN = (
    "\x00-\x08\x0d-\x1f\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_BREAKS = "\x0b\x0c\x85\u2028\u2029"
"""Other ways to begin a line."""
# Joiners and variants make emoji, and words of some scripts, what they are; anywhere else they hide. At the edge of
# a text they may belong to what comes before or after it in a stream.
_JOINED = "\u0590-\u200a\u2010-\ufdff\ufe10-\U0010ffff"
_STRAY = (
    f"(?<=[^{_JOINED}\ufe0f])[\u200c\u200d]|[\u200c\u200d](?=[\x00-\u058f])"
    f"|(?<=[^{_JOINED}\xa9\xae])[\ufe00-\ufe0f](?!\u20e3)"
)
_UNSEEN = re.compile(f"[{_HIDDEN}]|{_STRAY}")
_BREAK = re.compile(f"[{_BREAKS}]")
_HALF = re.compile("[\ud800-\udfff]")
_UNSAFE_IN_JSON = re.compile(f"[{_HIDDEN}{_BREAKS}\ud800-\udfff]|{_STRAY}")
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")

_ASCII = {
    **dict.fromkeys("“”„«»", '"'),
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("–—─━═┄┈", "-"),
    **dict.fromkeys("│┃▌▐║", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼┏┓┗┛┣┫┳┻╋╭╮╰╯╇╈┡┩", "+"),
    **dict.fromkeys("•·", "*"),
    "…": "...",
    "›": ">",
    "→": "->",
    "✓": "+",
    "✗": "x",
    "\xa0": " ",
}


def clean(text: str) -> str:
    """What a person may see of a text. Lines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return _HALF.sub("\ufffd", _UNSEEN.sub("", _BREAK.sub("\n", text)))


def one_line(text: str) -> str:
    """For a name, a cell, an error: what stands behind a line break must not look like a line of ours."""
    return clean(text).replace("\n", " ").replace("\t", " ").strip("\u200c\u200d")


def painted(text: str) -> str:
    """Clean, but for colours, which we put there ourselves."""
    return "".join(part if i % 2 else clean(part) for i, part in enumerate(_COLOUR.split(text)))


def escaped(json_text: str) -> str:
    """JSON that means the same and shows nothing but itself: such characters stand in strings alone."""
    return _UNSAFE_IN_JSON.sub(lambda found: _escape(found[0]), json_text)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def to_ascii(text: str) -> str:
    """The nearest ASCII spelling."""
    if text.isascii():
        return text
    import unicodedata

    def spell(character: str) -> str:
        if character in _ASCII:
            return _ASCII[character]
        plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
        return plain or ("" if unicodedata.category(character) in ("Mn", "Cf") else "?")

    return "".join(c if c.isascii() else spell(c) for c in text)
