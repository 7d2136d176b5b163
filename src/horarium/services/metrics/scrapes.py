"""The figures of several processes as those of one: whichever of them Prometheus reaches, it answers for all.

Counters and histograms are added up, those of processes that have ended too, so that none ever goes back. What each
process reads from the store for itself is taken from the one that was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

SUMS = (
    "process_cpu_seconds_total", "process_resident_memory_bytes", "process_virtual_memory_bytes", "process_open_fds",
    "process_max_fds",
)  # fmt: skip
"""Gauges that are true of the processes together."""
LARGEST = ("horarium_job_last_success_timestamp_seconds",)
SMALLEST = ("process_start_time_seconds",)
ADDED = ("counter", "histogram", "summary")
PROCESSES = """\
# HELP horarium_processes Processes of this server that these figures are of.
# TYPE horarium_processes gauge
horarium_processes {}
"""


class Family(Struct):
    """The samples under one name."""

    type: str = ""
    heads: list[str] = []
    samples: dict[str, float] = {}


def add_up(own: bytes, others: Sequence[bytes], ended: Sequence[bytes] = ()) -> bytes:
    """The text for a scrape, of this process's own and those of its siblings; `ended`: last figures of such as have
    ended, of which only counts are taken."""
    families = _read(own)
    for text in others:
        _add(families, _read(text), _rule)
    for text in ended:
        _add(families, _read(text), _rule_of_ended)
    return _write(families.values()) + PROCESSES.format(1 + len(others)).encode()


def counts_of(texts: Sequence[bytes]) -> bytes:
    """The last samples of processes that have ended."""
    families: dict[str, Family] = {}
    for text in texts:
        _add(families, _read(text), _rule_of_ended)
    return _write(families.values())


Rule = Callable[[float, float], float]


def _sum(own: float, other: float) -> float:
    return own + other


def _rule(name: str, family: Family, sample: str) -> Rule | None:
    """How two samples become one; None: only that of the process that was asked counts."""
    if _is_creation(sample) or name in SMALLEST:
        return min
    if name in LARGEST:
        return max
    return _sum if family.type in ADDED or name in SUMS else None


def _rule_of_ended(name: str, family: Family, sample: str) -> Rule | None:
    if name in LARGEST:
        return max
    if family.type not in ADDED and not _is_creation(sample):
        return None
    return _rule(name, family, sample)


def _is_creation(sample: str) -> bool:
    return sample.partition("{")[0].endswith("_created")


def _add(families: dict[str, Family], more: dict[str, Family], rule_of: Callable[..., Rule | None]) -> None:
    for name, family in more.items():
        for sample, value in family.samples.items():
            rule = rule_of(name, family, sample)
            if rule is None:
                continue
            known = families.setdefault(name, Family(family.type, family.heads, {}))
            before = known.samples.get(sample)
            known.samples[sample] = value if before is None else rule(before, value)


def _read(text: bytes) -> dict[str, Family]:
    families: dict[str, Family] = {}
    family = Family()
    for line in text.decode().splitlines():
        if line.startswith("#"):
            _, kind, name, *rest = line.split(" ", 3)
            family = families.setdefault(name, Family("", [], {}))
            family.heads.append(line)
            if kind == "TYPE":
                family.type = rest[0]
        elif line:
            sample, _, value = line.rpartition(" ")
            family.samples[sample] = float(value)
    return families


def _write(families: Iterable[Family]) -> bytes:
    lines: list[str] = []
    for family in families:
        lines += family.heads
        lines += [f"{sample} {_number(value)}" for sample, value in family.samples.items()]
    return ("\n".join(lines) + "\n").encode() if lines else b""


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
