"""Coterie: one service that hosts a household of AI agents."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.core.tool import ToolContext, tool

__version__ = "0.1.0"
__all__ = ["ToolContext", "tool"]


def __getattr__(name: str) -> object:
    # Loaded on demand: `import coterie` must cost nothing.
    if name in __all__:
        from coterie.core import tool as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
