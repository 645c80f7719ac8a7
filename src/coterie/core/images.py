"""Pictures that people send, recognised by what is in them."""

from __future__ import annotations

import base64
import binascii
import struct

from coterie.core.errors import InvalidRequest, TooLarge
from coterie.core.message import ImagePart

LARGEST = 20 * 1024 * 1024
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_NO_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})


def decode_image(data: str, name: str | None = None) -> ImagePart:
    """A picture that came as base64."""
    if len(data) > 2 * LARGEST:
        raise _too_large(len(data) * 3 // 4)
    try:
        return read_image(base64.b64decode("".join(data.split()), validate=True), name)
    except (binascii.Error, ValueError):
        raise InvalidRequest("the image is not base64") from None


def image_at(url: str) -> ImagePart:
    """The picture that a data URL holds. Nothing is fetched on behalf of whoever sends a message."""
    kind, comma, data = url.partition(",")
    if not comma or not kind.lower().startswith("data:") or not kind.lower().endswith(";base64"):
        raise InvalidRequest("an image must come with the message, as a data:image/…;base64,… URL")
    return decode_image(data)


def read_image(data: bytes, name: str | None = None) -> ImagePart:
    """The picture in these bytes, whatever its file was called."""
    if not data:
        raise InvalidRequest("the image is empty: it has 0 bytes")
    if len(data) > LARGEST:
        raise _too_large(len(data))
    for media_type, magic, size_of in _FORMATS:
        if not data.startswith(magic[: len(data)]) or (media_type == "image/webp" and not _is_webp(data)):
            continue
        try:
            width, height = size_of(data)
        except (struct.error, IndexError):
            raise InvalidRequest(f"the image is cut off: its {media_type} header is not whole") from None
        if not width or not height:
            raise InvalidRequest(f"the image is damaged: it says that it is {width} × {height} pixels large")
        return ImagePart(media_type, data, name)
    raise InvalidRequest("this is not an image that can be sent: PNG, JPEG, GIF and WebP are read")


def _too_large(size: int) -> TooLarge:
    return TooLarge(
        f"the image has {size / 1024 / 1024:.1f} MB; at most {LARGEST // 1024 // 1024} MB can be sent"
    )


def _png(data: bytes) -> tuple[int, int]:
    length, kind, width, height = struct.unpack_from(">I4sII", data, 8)
    _ = data[28 + 4]  # the end of the header chunk, with its checksum
    return (width, height) if (length, kind) == (13, b"IHDR") else (0, 0)


def _gif(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", data, 6)
    _ = data[12]
    return (width, height) if data[3:6] in (b"87a", b"89a") else (0, 0)


def _jpeg(data: bytes) -> tuple[int, int]:
    """Segments are skipped up to the one that gives the size."""
    at = 2
    while True:
        if data[at] != 0xFF:
            return 0, 0
        while data[at] == 0xFF:
            at += 1
        kind = data[at]
        at += 1
        if kind in _NO_LENGTH:
            continue
        (length,) = struct.unpack_from(">H", data, at)
        if kind in _START_OF_FRAME:
            height, width = struct.unpack_from(">HH", data, at + 3)
            return width, height
        if kind == 0xDA or length < 2:
            return 0, 0
        at += length


def _is_webp(data: bytes) -> bool:
    return data[8:12] == b"WEBP"[: max(0, len(data) - 8)]


def _webp(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        _ = data[29]
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack_from("<HH", data, 26)
    return (width & 0x3FFF, height & 0x3FFF) if kind == b"VP8 " else (0, 0)


_FORMATS = (
    ("image/png", b"\x89PNG\r\n\x1a\n", _png),
    ("image/jpeg", b"\xff\xd8\xff", _jpeg),
    ("image/gif", b"GIF8", _gif),
    ("image/webp", b"RIFF", _webp),
)
