"""Any server that speaks the OpenAI chat protocol."""

from __future__ import annotations

from coterie.core.ports import Model
from coterie.models.provider import Provider, Reach


def make(name: str, reach: Reach) -> Model:
    from coterie.models.openai_chat import Endpoint, OpenAIChat

    endpoint = Endpoint(
        reach.base_url, reach.pool(), api_key=reach.key, api_key_env=reach.key_name, service=reach.type
    )
    return OpenAIChat(name, endpoint)


PROVIDER = Provider(
    make,
    built_in=False,
)
