"""The source as these tests see it: files with their trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "horarium"
FOLDERS = ("src", "tests", "bench", "examples", "tools")
WORD = re.compile(r"\w+")
Function = ast.FunctionDef | ast.AsyncFunctionDef
HOLDS = ast.stmt | ast.ExceptHandler | ast.match_case


@dataclass(frozen=True)
class Module:
    """A Python file. `name`: its path from the root of the repository."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def defined(self) -> list[Function | ast.ClassDef]:
        """Functions and classes. Only a statement can hold one, and statements are few beside expressions."""
        found: list[Function | ast.ClassDef] = []
        left: list[ast.AST] = [self.tree]
        while left:
            node = left.pop()
            if isinstance(node, Function | ast.ClassDef):
                found.append(node)
            left += [inner for inner in ast.iter_child_nodes(node) if isinstance(inner, HOLDS)]
        return found

    @property
    def functions(self) -> list[Function]:
        return [node for node in self.defined if isinstance(node, Function)]

    @property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.defined if isinstance(node, ast.ClassDef)]

    def constants(self) -> Iterator[str]:
        """Names that are assigned at the top of the module."""
        for node in self.tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id


def modules(*folders: str) -> list[Module]:
    return [_module(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def _module(path: Path) -> Module:
    """Each file is read once."""
    return Module(path)


ALL = modules(*FOLDERS)
OURS = modules("src")
