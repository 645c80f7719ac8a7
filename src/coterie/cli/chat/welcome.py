"""What somebody reads who is here for the first time."""

from __future__ import annotations

from coterie.cli.chat.conversation import Conversation
from coterie.cli.chat.screen import Screen
from coterie.engine.household.home import Home

WIDE = 70
"""Columns that two columns of text need."""
TRY = (
    ("show me around", "a short tour"),
    ("what time is it", "a tool at work"),
    ("write hello to note.txt", "a file in the agent's workspace"),
    ("/agents", "who lives here; /help shows the rest"),
)


async def welcome(screen: Screen, conversation: Conversation, home: Home) -> None:
    """Said once, above the first prompt."""
    if conversation.model.startswith("offline/"):
        model = (
            "There is no model key yet, so a built-in offline demo answers. It is not a language model, but it "
            "shows you around. For a real model, put a provider's key into the environment where the gateway "
            "runs, start it again, and name a default_model in agent.yaml; `coterie model list` shows names."
        )
    else:
        model = (
            f"The model is set to {conversation.model}, and was not asked yet; `coterie model test` tries it."
        )
    text = (
        "Welcome to Coterie: a household of AI agents that live on this machine, each with its own "
        f"character, files and model. Yours was made in {home.shown}: agent.yaml there is its configuration, "
        f"agents/{conversation.agent_id} holds the files of {conversation.agent_name}, who you are talking to.\n"
        f"{model}\nThings to try:"
    )
    await screen.lines(text)
    wide = screen.terminal.columns >= WIDE
    shown = (f"  {say:<29}{what}" if wide else f"  {say}: {what}" for say, what in TRY)
    await screen.lines("\n".join(shown), "    ")
    await screen.lines("")
