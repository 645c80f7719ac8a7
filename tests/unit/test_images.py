"""Pictures are recognised by what is in them."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.errors import InvalidRequest
from coterie.core.images import LARGEST, read_image


def png(width: int = 2, height: int = 3) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))


def gif(width: int = 2, height: int = 3) -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0)


def jpeg(width: int = 2, height: int = 3) -> bytes:
    comment = b"\xff\xfe" + struct.pack(">H", 7) + b"hello"
    frame = b"\xff\xff\xc2" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\x00"
    return b"\xff\xd8" + comment + frame + b"\xff\xd9"


def webp(kind: bytes, body: bytes) -> bytes:
    chunk = kind + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk


WEBP = {
    "lossy": webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 2, 3)),
    "lossless": webp(b"VP8L", b"\x2f" + struct.pack("<I", 1 | 2 << 14)),
    "extended": webp(b"VP8X", b"\0\0\0\0" + b"\x01\0\0" + b"\x02\0\0"),
}


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (png(), "image/png"),
        (gif(), "image/gif"),
        (gif().replace(b"89a", b"87a"), "image/gif"),
        (jpeg(), "image/jpeg"),
        *((data, "image/webp") for data in WEBP.values()),
    ],
)
def test_a_picture_is_read_whole_and_its_header_must_be_there(data: bytes, media_type: str) -> None:
    image = read_image(data)
    assert (image.media_type, image.data) == (media_type, data)
    assert "data" not in repr(image)
    header = data[:-2] if media_type == "image/jpeg" else data
    end = len(header) - 4 if media_type == "image/jpeg" else len(header) - 1
    for length in range(1, end):
        with pytest.raises(InvalidRequest, match=r"cut off|is not an image"):
            read_image(header[:length])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes"),
        (b"hello", "PNG, JPEG, GIF and WebP"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is not an image"),
        (b"BM" + bytes(100), "is not an image"),
        (b"%PDF-1.7", "is not an image"),
        (b"RIFF" + bytes(4) + b"WAVEfmt " + bytes(50), "is not an image"),
        (png(0, 3), "damaged"),
        (gif(2, 0), "damaged"),
        (jpeg(0, 0), "damaged"),
        (b"GIF88a" + bytes(50), "damaged"),
        (b"\xff\xd8\xff\xda" + bytes(50), "damaged"),
        (b"\xff\xd8\xff\xe0\0\0" + bytes(50), "damaged"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "damaged"),
        (webp(b"JUNK", bytes(40)), "damaged"),
    ],
)
def test_anything_else_is_refused_with_a_reason(data: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_image(data)


def test_the_largest_picture() -> None:
    assert read_image(png().ljust(LARGEST, b"\0")).media_type == "image/png"
    with pytest.raises(InvalidRequest, match=r"20\.0 MB; at most 20 MB") as caught:
        read_image(png().ljust(LARGEST + 1, b"\0"))
    assert caught.value.http_status == 413
    with pytest.raises(InvalidRequest, match=r"50\.0 MB"):
        read_image(bytes(50 * 1024 * 1024))


@given(st.sampled_from([png(), gif(), jpeg(), *WEBP.values()]), st.binary(max_size=40), st.integers(0, 40))
def test_damage_never_does_more_than_refuse(data: bytes, noise: bytes, at: int) -> None:
    with suppress(InvalidRequest):
        assert read_image(data[:at] + noise + data[at:]).media_type.startswith("image/")
