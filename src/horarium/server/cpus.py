"""How many processors this process may use: those of its affinity, as far as a quota of its control group lets it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def usable_cpus() -> int:
    """Whole processors, at least one."""
    return max(min([allowed_cpus(), *(int(quota) for quota in _quotas(CGROUPS, OWN_CGROUPS))]), 1)


def allowed_cpus() -> int:
    """Those on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quotas(root: Path, own: Path) -> Iterable[float]:
    """The quota of each control group that holds this process, in processors."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:
            yield from _of_second(root, name)
        elif "cpu" in controllers.split(","):
            yield from _of_first(root / controllers, name)


def _of_second(root: Path, name: str) -> Iterable[float]:
    """Of cgroups v2: `cpu.max` says `MICROSECONDS PERIOD`, or `max PERIOD`."""
    for folder in _upwards(root, name):
        words = _words(folder / "cpu.max")
        if len(words) == 2 and words[0] != "max":
            yield int(words[0]) / int(words[1])


def _of_first(root: Path, name: str) -> Iterable[float]:
    """Of cgroups v1: a quota below zero is none."""
    for folder in _upwards(root, name):
        quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
        if quota and period and int(quota[0]) > 0:
            yield int(quota[0]) / int(period[0])


def _upwards(root: Path, name: str) -> Iterable[Path]:
    """The folder of a control group, and those above it. In a container the root is its own group."""
    path = PurePosixPath(name.strip("/"))
    for part in (path, *path.parents):
        yield root / part


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
