"""What somebody reads who is here for the first time."""

from __future__ import annotations

from coterie.cli.chat.conversation import Conversation
from coterie.cli.chat.screen import Screen


async def welcome(screen: Screen, conversation: Conversation) -> None:
    """Said once, above the first prompt."""
    if conversation.model.startswith("offline/"):
        model = (
            "There is no model key yet, so a built-in offline demo answers. It is not a language model: it "
            "repeats what you say and shows tools at work. A real model: set default_model in agent.yaml "
            "and the provider's key in the environment."
        )
    else:
        model = f"{conversation.model} answers."
    text = (
        "Welcome to Coterie: a household of AI agents that live on this machine, each with its own "
        f"character, files and model. You are talking to {conversation.agent_name}.\n{model}\nThree things to try:"
    )
    await screen.lines(text)
    await screen.lines(
        "  what time is it              a tool at work\n"
        "  write hello to note.txt      a file in the agent's workspace\n"
        "  /agents                      who lives here; /help shows the rest"
    )
    await screen.lines("")
