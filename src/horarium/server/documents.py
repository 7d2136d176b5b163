"""YAML 1.2 and JSON texts, read and written: settings files, job files, exports.

The only module that imports ruamel.yaml, and it does so when a text is read, not before. YAML 1.2 is meant: `no` is a
word, `9:34` is a word, and (ours) a bare date or time stays the text that was written, so that an instant reaches the
one place that parses it. Nothing here builds objects from tags, and a key that is there twice is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from math import inf
from typing import Any

from horarium.errors import CallerError

TEXT_CHARS_MAX = 64 * 1024 * 1024
"""The longest text that is read, in characters."""


VALUES_MAX = 10_000_000
"""The most values in one text, those behind an alias counted each time that it is named."""


class Mapped(dict[Any, Any]):
    """A mapping of a YAML text, and the line (counted from 1) in which it begins."""

    line = 0


def line_of(value: Any) -> int | None:
    """The line in which a mapping that was read from YAML begins; None for anything else."""
    return value.line if isinstance(value, Mapped) else None


def read_yaml(text: str, source: str, error: type[CallerError]) -> list[Any]:
    """The documents of a YAML text, empty ones left out. Raises `error`, which names the source and the line."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    if len(text) > TEXT_CHARS_MAX:
        raise error(f"{source}: {len(text):,} characters; at most {TEXT_CHARS_MAX:,} are read")
    try:
        documents = [document for document in _loader().load_all(text) if document is not None]
    except MarkedYAMLError as problem:
        raise error(_explain(problem, source)) from None
    except (YAMLError, ValueError, RecursionError) as problem:
        raise error(f"{source}: not YAML 1.2: {_first_line(str(problem))}") from None
    if _weigh(documents, {}) > VALUES_MAX:
        raise error(f"{source}: its aliases refer to themselves, or make more than {VALUES_MAX:,} values")
    return documents


def key_lines(text: str) -> dict[str, int]:
    """The line (counted from 1) of each key at the top of a YAML text that can be read."""
    from ruamel.yaml.nodes import MappingNode

    root = _loader().compose(text)
    if not isinstance(root, MappingNode):
        return {}
    return {str(key.value): key.start_mark.line + 1 for key, _ in root.value}


def write_yaml(value: Any) -> str:
    """A value made of dicts, lists and scalars as YAML 1.2, keys in their order."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.allow_unicode = True
    yaml.width = 100
    out = StringIO()
    yaml.dump(value, out)
    return out.getvalue()


def _weigh(value: Any, known: dict[int, float]) -> float:
    """How many values this holds; endless of one in itself. `known`: those of lists and mappings, by identity."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = inf
        within = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_weigh(each, known) for each in within)
    return known[id(value)]


def _loader() -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import SafeConstructor

    class Constructor(SafeConstructor):
        """Leaves dates and times as they were written, and keeps the lines of mappings."""

        def construct_mapped(self, node: Any) -> Iterator[Mapped]:
            data = Mapped()
            data.line = node.start_mark.line + 1
            yield data
            data.update(self.construct_mapping(node))

    Constructor.add_constructor("tag:yaml.org,2002:timestamp", Constructor.construct_yaml_str)
    Constructor.add_constructor("tag:yaml.org,2002:map", Constructor.construct_mapped)
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = Constructor
    return yaml


def _explain(problem: Any, source: str) -> str:
    mark = problem.problem_mark or problem.context_mark
    place = f"{source}:{mark.line + 1}" if mark is not None else source
    what = _first_line(problem.problem or problem.context or str(problem)).partition(" with value ")[0]
    line = (mark.get_snippet() if mark is not None else None) or ""
    hint = "; put a cron expression in quotes" if "*" in line else ""
    return f"{place}: not YAML 1.2: {what}{hint}"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "it can't be read"
