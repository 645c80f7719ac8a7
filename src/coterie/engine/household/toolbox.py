"""Every tool there is, from all sources, as one box that changes when they do."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from coterie.core.tool import Tool, ToolSource

log = logging.getLogger("coterie.tools")


class Toolbox:
    def __init__(self, sources: Sequence[ToolSource]) -> None:
        self._sources = sources
        self._made: tuple[tuple[int, ...], Mapping[str, Tool]] | None = None

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(source.version for source in self._sources)

    @property
    def problems(self) -> list[str]:
        """What could not be loaded, with place and reason, of those sources that tell."""
        return [str(one) for source in self._sources for one in getattr(source, "problems", ())]

    @property
    def tools(self) -> Mapping[str, Tool]:
        """By name. Where two sources have the same one, the first keeps it."""
        version = self.version
        if self._made is None or self._made[0] != version:
            found: dict[str, Tool] = {}
            for source in self._sources:
                for name, tool in source.tools().items():
                    if name in found:
                        log.warning(
                            "the tool %s of %s is hidden by that of %s", name, tool.source, found[name].source
                        )
                    found.setdefault(name, tool)
            self._made = (version, found)
        return self._made[1]
