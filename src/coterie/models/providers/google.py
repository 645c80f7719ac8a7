"""Google Gemini."""

from __future__ import annotations

from coterie.core.ports import Model
from coterie.models.provider import Provider, Reach


def make(name: str, reach: Reach) -> Model:
    from coterie.models.google import GoogleGemini
    from coterie.models.pydantic_model import Address

    return GoogleGemini(name, Address(reach.base_url, reach.key or "none", reach.key_name), reach.pool())


PROVIDER = Provider(
    make,
    "https://generativelanguage.googleapis.com",
    key_names=("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    library_name="google",
    first_model="gemini-2.5-flash",
    order=30,
)
