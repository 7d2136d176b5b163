"""Modules that libraries load though a server may never use them: they are loaded when something first asks for what is
in them.

A library that begins with `import yaml` gets a module that has its name and its place, and nothing in it yet. The first
name that is asked of it loads it, under a lock; an error in that is the error of who asked. A module that is missing is
left alone, so that its import fails where it always did. A name taken at import (`from yaml import dump`) loads it at
once. Of a package that takes much at its start, only the parts that are named are loaded.
"""

from __future__ import annotations

import gc
import sys
import typing
from importlib import import_module
from importlib.util import find_spec
from threading import RLock
from types import ModuleType

SELDOM_USED = (
    "bz2",  # by shutil, for archives
    "csv",  # by importlib.metadata, for lists of files
    "locale",  # by subprocess, for text
    "logging.config",  # by uvicorn, for a log that we set up ourselves
    "lzma",  # by shutil, for archives
    "pdb",  # by litestar, to stop at an exception
    "prometheus_client",  # all but its metrics: servers, gateways
    "psutil",  # by the telemetry that the client of Redis brings
    "redis",  # all but what a client of one server needs: clusters, sentinels, notifications
    "redis.asyncio",
    "uvicorn",  # all but its server: a command line, supervisors
    "yaml",  # by litestar, for a document that we serve ourselves
)
BY_STORE = {
    # By its driver for the API that does not use it, to look at certificates: 8 MB.
    "mongodb": ("cryptography.x509",),
    "mongodb+srv": ("cryptography.x509",),
}
"""What the drivers of stores load besides, by the scheme of the store's URL. (To find a part loads its package.)"""
IN_A_PART = {
    "redis.asyncio.Redis": "redis.asyncio.client",
    "uvicorn.Config": "uvicorn.config",
}
"""Names of a package that are found without loading the rest of it."""
_OF_A_MODULE = ("__all__", "__version__")
"""Names with underscores that are looked for in the module; others the interpreter asks of any module."""
_lock = RLock()
_loading: set[str] = set()


class Later(ModuleType):
    """A module that is not loaded yet."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name not in _OF_A_MODULE:
            raise AttributeError(name)
        with _lock:
            if isinstance(self, Later):
                if (part := IN_A_PART.get(f"{self.__name__}.{name}")) is not None:
                    return getattr(import_module(part), name)
                if self._has_part(name):
                    return import_module(f"{self.__name__}.{name}")
                self._load(name)
        return getattr(self, name)

    def _has_part(self, name: str) -> bool:
        return hasattr(self, "__path__") and find_spec(f"{self.__name__}.{name}") is not None

    def _load(self, name: str) -> None:
        if self.__name__ in _loading:  # its own code asks for what it has not defined yet
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet")
        _loading.add(self.__name__)
        try:
            assert self.__spec__ is not None
            assert self.__spec__.loader is not None
            self.__spec__.loader.exec_module(self)
            self.__class__ = ModuleType  # type: ignore[assignment]
        finally:
            _loading.remove(self.__name__)


def seldom_used(store: str) -> tuple[str, ...]:
    """The modules that a server on this store may never use."""
    return SELDOM_USED + BY_STORE.get(store.partition(":")[0], ())


def postpone(*names: str) -> None:
    """Load these modules when they are first used; those that are loaded, or missing, stay as they are."""
    for name in names:
        parent = name.rpartition(".")[0]
        missing = parent and parent not in sys.modules and find_spec(parent) is None
        spec = None if missing or name in sys.modules else find_spec(name)
        if spec is None or spec.loader is None:
            continue
        module = Later(name)
        module.__spec__, module.__loader__, module.__package__ = spec, spec.loader, spec.parent
        if spec.origin is not None:
            module.__file__ = spec.origin
        if spec.submodule_search_locations is not None:
            module.__path__ = spec.submodule_search_locations
        sys.modules[name] = module
        if parent:
            setattr(sys.modules[parent], name.rpartition(".")[2], module)


def forget(*names: str) -> None:
    """These modules and their parts are used no more: what is loaded next goes where they were."""
    forgotten = [each for each in sys.modules if any(each == name or each.startswith(f"{name}.") for name in names)]
    for name in forgotten:
        parent, _, child = name.rpartition(".")
        if parent:
            vars(sys.modules[parent]).pop(child, None)
    for name in forgotten:
        del sys.modules[name]
    forget_what_helped()
    gc.collect()


def forget_what_helped() -> None:
    """What Python keeps of loading modules: what it found in folders, overloads, and the types that were made."""
    sys.path_importer_cache.clear()
    typing.clear_overloads()
    for clear in getattr(typing, "_cleanups", ()):
        clear()
