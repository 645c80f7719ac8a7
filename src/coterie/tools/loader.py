"""Brings the tools together: built-in ones, those of installed packages, and the drop-in files of a home folder."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from coterie.core.tool import FunctionTool, Tool

log = logging.getLogger("coterie.tools")

GROUP = "coterie.plugins"

BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "system": ("coterie.tools.time", "coterie.tools.status"),
    "files": ("coterie.tools.files",),
    "memory": ("coterie.tools.memory",),
    "results": ("coterie.tools.results",),
    "agents": ("coterie.tools.agents",),
    "subagents": ("coterie.tools.subagents",),
}
"""Modules of each built-in plug-in."""


@dataclass(frozen=True, slots=True)
class LoadedTools:
    tools: dict[str, FunctionTool]
    problems: list[str]
    """What was skipped, with the place and the reason. For people."""


class PluginProblem(Exception):
    """A plug-in that was read but cannot be used."""


def load_tools(plugins_dir: Path | None = None, disabled: Collection[str] = ()) -> LoadedTools:
    """Every tool that is not disabled by its own name or its plug-in's id. A bad plug-in costs only itself."""
    loading = _Loading(frozenset(disabled))
    for plugin, modules in BUILT_IN.items():
        loading.add(plugin, f"plug-in {plugin}", partial(_built_in, modules))
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        loading.add(entry.name, f"plug-in {entry.name} ({entry.value})", partial(_from_entry_point, entry))
    for file in _drop_ins(plugins_dir):
        loading.add(file.stem, f"{file.parent.name}/{file.name}", partial(_from_file, file), file)
    return LoadedTools(loading.tools, loading.problems)


class InstalledTools:
    """The tools that belong to a home, read when they are first asked for. Implements ToolSource."""

    version = 0

    def __init__(self, plugins_dir: Path, disabled: Callable[[], Collection[str]]) -> None:
        self._plugins_dir = plugins_dir
        self._disabled = disabled

    def tools(self) -> Mapping[str, Tool]:
        return self._loaded.tools

    @property
    def problems(self) -> Sequence[str]:
        """Plug-ins that were skipped, and why."""
        return self._loaded.problems

    @cached_property
    def _loaded(self) -> LoadedTools:
        loaded = load_tools(self._plugins_dir, self._disabled())
        for problem in loaded.problems:
            log.warning("plug-in skipped: %s", problem)
        return loaded


@dataclass(slots=True)
class _Loading:
    disabled: frozenset[str]
    tools: dict[str, FunctionTool] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    plugins: set[str] = field(default_factory=set)

    def add(
        self, plugin: str, place: str, load: Callable[[], Iterable[FunctionTool]], file: Path | None = None
    ) -> None:
        if plugin in self.disabled:
            return
        try:
            if plugin in self.plugins:
                raise PluginProblem(f"there is a plug-in {plugin!r} already")
            found = self._checked(load())
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plug-in may do anything, sys.exit() included
            self.problems.append(_problem(place, error, file))
            return
        self.plugins.add(plugin)
        self.tools.update({tool.name: replace(tool, source=plugin) for tool in found})

    def _checked(self, tools: Iterable[FunctionTool]) -> list[FunctionTool]:
        found: dict[str, FunctionTool] = {}
        for tool in tools:
            if tool.name in self.disabled or found.get(tool.name) is tool:
                continue
            other = found.get(tool.name) or self.tools.get(tool.name)
            if other is not None:
                by = f"plug-in {other.source}" if other.source else "this plug-in"
                raise PluginProblem(f"line {_line(tool)}: there is a tool {tool.name!r} already, of {by}")
            found[tool.name] = tool
        return list(found.values())


def _built_in(modules: Iterable[str]) -> list[FunctionTool]:
    return [tool for name in modules for tool in _tools_of(importlib.import_module(name))]


def _from_entry_point(entry: EntryPoint) -> list[FunctionTool]:
    return _tools_of(entry.load())


def _from_file(file: Path) -> list[FunctionTool]:
    # Two homes may both have a dice.py, and neither may hide a real module of that name.
    digest = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]
    name = f"coterie_plugin_{digest}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return [tool for tool in _tools_of(module) if not tool.function.__module__.startswith("coterie.")]


def _tools_of(found: object) -> list[FunctionTool]:
    """The tools that a module holds, or that an entry point names outright."""
    if isinstance(found, FunctionTool):
        return [found]
    if isinstance(found, ModuleType):
        return [value for value in vars(found).values() if isinstance(value, FunctionTool)]
    if isinstance(found, list | tuple) and all(isinstance(value, FunctionTool) for value in found):
        return list(found)
    raise PluginProblem(f"expected a module, a tool or a list of tools, found {type(found).__name__}")


def _drop_ins(folder: Path | None) -> list[Path]:
    if folder is None or not folder.is_dir():
        return []
    return sorted(
        file for file in folder.glob("*.py") if file.is_file() and not file.name.startswith(("_", "."))
    )


def _problem(place: str, error: BaseException, file: Path | None) -> str:
    reason = str(error) if isinstance(error, PluginProblem) else _one_line(error)
    if isinstance(error, PluginProblem):
        return f"{place}: {reason}"
    if isinstance(error, SyntaxError) and error.filename is not None:
        where = place if file is not None and error.filename == str(file) else error.filename
        return f"{where}:{error.lineno}: {reason}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if file is not None and frame.filename == str(file)]
    if own:
        return f"{place}:{own[-1].lineno}: {reason}"
    if file is None and frames:
        return f"{place}: {Path(frames[-1].filename).name}:{frames[-1].lineno}: {reason}"
    return f"{place}: {reason}"


def _one_line(error: BaseException) -> str:
    return " ".join(traceback.format_exception_only(error)[-1].split())


def _line(tool: FunctionTool) -> int:
    code = getattr(tool.function, "__code__", None)
    return int(code.co_firstlineno) if code is not None else 0
