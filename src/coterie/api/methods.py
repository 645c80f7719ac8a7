"""Every method there is. RPC, HTTP and the command line all call these."""

from coterie.api import agent_methods, chat_methods, memory_methods, prompt_methods, subagent_methods
from coterie.api.method import METHODS, Method, call, dump, find, invalid, parse, perform, run

__all__ = [
    "METHODS",
    "Method",
    "agent_methods",
    "call",
    "chat_methods",
    "dump",
    "find",
    "invalid",
    "memory_methods",
    "parse",
    "perform",
    "prompt_methods",
    "run",
    "subagent_methods",
]
