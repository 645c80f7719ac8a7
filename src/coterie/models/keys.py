"""Where the keys of providers are found: the environment first, then the system's keyring."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence

SERVICE = "coterie"
"""The name under which keys stand in the keyring; the user is the name of the environment variable."""


def find_key(names: Sequence[str]) -> tuple[str, str] | None:
    """The first key that is there, and the name it was found under."""
    for name in names:
        key = os.environ.get(name, "").strip()
        if key:
            return key, name
    for name in names:
        key = _from_keyring(name)
        if key:
            return key, name
    return None


def _from_keyring(name: str) -> str:
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        return ""
    try:
        return str(keyring.get_password(SERVICE, name) or "").strip()
    except Exception:
        # A machine without a keyring, or with a locked one, is a machine without this key.
        return ""
