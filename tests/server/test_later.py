"""Modules that are loaded when something first asks for what is in them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType
from weakref import ref

import pytest

from horarium.server.later import IN_A_PART, SELDOM_USED, Later, forget, postpone
from tests.blackbox.outside import environment
from tests.waiting import PATIENCE

OF_A_LIBRARY = {
    "bz2": "compress",
    "csv": "reader",
    "locale": "normalize",
    "logging.config": "dictConfig",
    "lzma": "compress",
    "pdb": "post_mortem",
    "prometheus_client": "generate_latest",
    "psutil": "Process",
    "redis": "RedisCluster",
    "redis.asyncio": "RedisCluster",
    "uvicorn": "run",
    "yaml": "dump",
}
"""What each of the modules is loaded for."""
USED = """
import importlib, json, sys
from horarium.server.later import SELDOM_USED, Later, postpone
postpone(*SELDOM_USED)
import horarium.server.process
used = json.loads(sys.argv[1])
for name in used:
    assert isinstance(importlib.import_module(name), Later), f"nothing asked for {name}"
for name, attribute in used.items():
    module = importlib.import_module(name)
    assert callable(getattr(module, attribute)), name
    assert not isinstance(module, Later), name
"""
ON_REDIS = """
import sys
from horarium.server.later import SELDOM_USED, postpone
postpone(*SELDOM_USED)
import horarium.stores.redis, horarium.buses.redis
assert "redis.asyncio.client" in sys.modules
print(*(name for name in sys.modules if name.startswith("redis.") and ("cluster" in name or "sentinel" in name)
    and not name.startswith("redis.commands.")))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """`seldom`, whose part `seldom.small` takes a name from `seldom.tiny` by way of the package."""
    folder = tmp_path / "seldom"
    folder.mkdir()
    (folder / "__init__.py").write_text("__version__ = '7'\nfrom seldom import large\nvalue = large.value\n")
    (folder / "large.py").write_text("value = 42\n")
    (folder / "small.py").write_text("from . import tiny\nvalue = tiny.value\n")
    (folder / "tiny.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    postpone("seldom")
    yield "seldom"
    for name in [name for name in sys.modules if name.partition(".")[0] == "seldom"]:
        del sys.modules[name]


def test_it_is_loaded_when_a_name_is_asked_for(package: str) -> None:
    module = import_module(package)
    assert isinstance(module, Later)
    assert Path(str(module.__file__)).name == "__init__.py"
    assert not hasattr(module, "__warningregistry__")
    assert isinstance(module, Later), "the interpreter asks for such names of all modules"
    assert module.value == 42
    assert type(module) is ModuleType
    assert sys.modules[package] is module
    assert not hasattr(module, "no_such_name")


def test_names_with_underscores_that_it_defines_are_found(package: str) -> None:
    assert import_module(package).__version__ == "7"


def test_a_part_is_loaded_without_the_rest(package: str) -> None:
    assert import_module(f"{package}.small").value == 1
    assert isinstance(sys.modules[package], Later)
    assert f"{package}.large" not in sys.modules
    assert import_module(package).value == 42


def test_a_name_that_its_code_asks_for_too_early_is_an_error_of_that_code(tmp_path: Path, package: str) -> None:
    code = tmp_path / package / "__init__.py"
    code.write_text("import seldom\nseldom.value\nvalue = 1\n")
    with pytest.raises(AttributeError, match="'value' yet"):
        import_module(package).value  # noqa: B018
    code.write_text("value = 1234567\n")
    assert import_module(package).value == 1234567, "and it is tried again"


def test_threads_that_ask_at_once_load_it_once(tmp_path: Path, package: str) -> None:
    code = tmp_path / package / "__init__.py"
    code.write_text("import sys\nsys.loaded_seldom = getattr(sys, 'loaded_seldom', 0) + 1\nvalue = 42\n")
    module = import_module(package)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: module.value, range(64))) == [42] * 64
    assert sys.__dict__.pop("loaded_seldom") == 1


def test_what_is_loaded_or_missing_stays_as_it_is() -> None:
    before = sys.modules["json"]
    postpone("json", "no_such_module_anywhere", "no_such_module_anywhere.part")
    assert sys.modules["json"] is before
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        import_module("no_such_module_anywhere")


def test_what_is_forgotten_is_gone_and_can_be_loaded_again(tmp_path: Path, package: str) -> None:
    (tmp_path / package / "large.py").write_text(
        "from typing import Generic, TypeVar, overload\nT = TypeVar('T')\nclass Kept(Generic[T]): pass\n"
        "class Given(Kept[T]): pass\n@overload\ndef f(a: int) -> int: ...\n@overload\ndef f(a: str) -> str: ...\n"
        "def f(a): return Kept[Given]\nvalue = 42\n"
    )
    module = import_module(package)
    kind = ref(import_module(f"{package}.large").Given)
    assert kind() is not None
    forget(f"{package}.large")
    assert f"{package}.large" not in sys.modules
    assert kind() is None
    assert "large" not in vars(module)
    assert import_module(f"{package}.large").value == 42
    forget(package)
    assert not [name for name in sys.modules if name.startswith(package)]
    assert "sys" in sys.modules


def test_names_are_where_they_are_looked_for() -> None:
    for name, part in IN_A_PART.items():
        package, _, attribute = name.rpartition(".")
        assert getattr(import_module(part), attribute) is getattr(import_module(package), attribute)


@pytest.mark.slow
def test_a_store_on_redis_needs_no_clusters() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_REDIS],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.slow
def test_a_server_can_use_each_of_them() -> None:
    assert set(OF_A_LIBRARY) == set(SELDOM_USED)
    command = [sys.executable, "-c", USED, json.dumps(OF_A_LIBRARY)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
