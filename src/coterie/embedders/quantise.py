"""Vectors as they are stored: one signed byte a dimension, which keeps the angles."""

from __future__ import annotations

from typing import Any


def quantise(vectors: Any) -> list[bytes]:
    import numpy as np

    wide = np.nan_to_num(np.asarray(vectors, np.float32))
    largest = np.maximum(np.abs(wide).max(axis=1, keepdims=True), 1e-9)
    small = np.rint(wide / largest * 127).astype(np.int8)
    return [row.tobytes() for row in small]
