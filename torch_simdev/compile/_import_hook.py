"""Running code right after a module is imported for the first time, without importing it oneself."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class _Loader(importlib.abc.Loader):
    """Another loader, followed by an action."""

    def __init__(self, loader: importlib.abc.Loader, action: Callable[[], None]):
        self._loader = loader
        self._action = action

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module is to look as if it had been loaded without us.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that have an action by asking the other finders; retires with the last of them."""

    def __init__(self) -> None:
        self.actions: dict[str, Callable[[], None]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        action = self.actions.pop(name, None)
        if action is None:
            return None
        if not self.actions:
            sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            if finder is self:
                continue
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, action)
                return spec
        return None


def after_import(actions: dict[str, Callable[[], None]]) -> None:
    """Calls each action after the module that it is for has been imported; at once if it already was."""
    finder = _Finder()
    for name, action in actions.items():
        if name in sys.modules:
            action()
        else:
            finder.actions[name] = action
    if finder.actions:
        sys.meta_path.insert(0, finder)
