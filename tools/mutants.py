"""Breaks the pure rules at random places, one at a time, and runs their tests: a mutant that survives shows a test that
is missing. `python tools/mutants.py [--count 40] [--seed 1] [--only triggers/cron]`

Each mutant lives in a copy of the package, so the working tree is never touched. Exit status 0 if none survived.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
TESTS = {"triggers": ["tests/triggers"], "rules": ["tests/core", "tests/services", "tests/simulation"]}
"""What must notice a broken module of each folder."""
SECONDS_MAX = 300
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
}  # fmt: skip


def places(tree: ast.Module) -> Iterator[ast.AST]:
    """What can be broken."""
    for node in ast.walk(tree):
        if (
            (isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED)
            or (isinstance(node, ast.BinOp) and type(node.op) in COMPUTED and _is_number(node))
            or isinstance(node, ast.BoolOp)
            or (isinstance(node, ast.Constant) and type(node.value) is int)
        ):
            yield node


def _is_number(node: ast.BinOp) -> bool:
    return not any(isinstance(side, ast.JoinedStr | ast.List | ast.Tuple) for side in (node.left, node.right))


def mutate(node: ast.AST) -> str:
    """Break it, and say how."""
    before = ast.unparse(node)
    match node:
        case ast.Compare():
            node.ops[0] = COMPARED[type(node.ops[0])]()
        case ast.BinOp():
            node.op = COMPUTED[type(node.op)]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.Constant(value=int(value)):
            node.value = value + 1
    return f"{before}  ->  {ast.unparse(node)}"


def is_noticed(package: Path, folder: str) -> bool:
    """Whether the tests of the folder fail on this copy. One that never ends is noticed too."""
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not proof", "-p", "no:cacheprovider", *TESTS[folder]]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="the beginning of a path below the package")
    given = parser.parse_args()
    random = Random(given.seed)
    source = ROOT / "src" / "horarium"
    files = [path.relative_to(source) for folder in TESTS for path in sorted((source / folder).rglob("*.py"))]
    files = [path for path in files if path.as_posix().startswith(given.only) and any(_places(source / path))]
    survived = 0
    with tempfile.TemporaryDirectory(prefix="horarium-mutants-") as folder:
        package = Path(folder) / "horarium"
        shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
        for number in range(given.count):
            path = random.choice(files)
            text = (source / path).read_text()
            tree = ast.parse(text)
            node = random.choice(list(places(tree)))
            how = f"{path}:{getattr(node, 'lineno', 0)}: {mutate(node)}"
            (package / path).write_text(ast.unparse(tree))
            noticed = is_noticed(package, path.parts[0])
            (package / path).write_text(text)
            survived += not noticed
            print(f"{number + 1:3} {'noticed ' if noticed else 'SURVIVED'} {how}", flush=True)
    print(f"{given.count - survived} of {given.count} noticed")
    return 1 if survived else 0


def _places(path: Path) -> list[ast.AST]:
    return list(places(ast.parse(path.read_text())))


if __name__ == "__main__":
    sys.exit(main())
