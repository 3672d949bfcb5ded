"""Packages that can be called: `pluto_edge.train` is both the package `train/` and the function that it is about.

`from pluto_edge import train` gives one and the same object whether or not `pluto_edge.train.trainer` was imported
before: Python binds a sub-package's name whenever something below it is imported, so a function of that name would
be replaced. Type checkers see the function (`pluto_edge/__init__.py` tells them), and notebooks its arguments.
"""

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["CallablePackage", "make_callable"]


class CallablePackage(ModuleType):
    """A package whose function is imported when it is first called, with all that it needs."""

    __function__: str  # as in "api:train"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function)

    @property
    def _function(self) -> Callable[..., Any]:
        file, _, name = self.__function__.partition(":")
        found: Callable[..., Any] = getattr(import_module(f"{self.__name__}.{file}"), name)
        return found


def make_callable(package: str, function: str) -> None:
    """Calling the package `package` calls `function` of it from now on, given as "file:name"."""
    module = sys.modules[package]
    module.__class__ = CallablePackage
    module.__function__ = function  # type: ignore[attr-defined]
