"""How late attempts began, as a histogram that takes a batch at a time: runs claimed together are counted by class, so
that a run costs little more than its place in a sorted list."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from horarium.clock import SECOND, SystemClock


def classes(edges: Sequence[int], ascending: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Of values in ascending order: each class that has any (the number of its upper edge, which belongs to it), and
    how many."""
    if len(ascending) == 1:
        yield bisect_left(edges, ascending[0]), 1
        return
    start = 0
    while start < len(ascending):
        place = bisect_left(edges, ascending[start])
        end = bisect_right(ascending, edges[place], start) if place < len(edges) else len(ascending)
        yield place, end - start
        start = end


class Lateness(Collector):
    """The histogram `name` of /metrics. `bounds`: upper edges in seconds."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], registry: CollectorRegistry) -> None:
        self._name, self._text = name, text
        self._labels = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self._edges = [round(bound * SECOND) for bound in bounds]
        self._counts = [0] * len(self._labels)
        self._micros = 0
        self._created = SystemClock().now() / SECOND
        registry.register(self)

    def observe(self, ascending: Sequence[int]) -> None:
        """Attempts began this late, in microseconds, in ascending order."""
        self._micros += sum(ascending)
        for place, count in classes(self._edges, ascending):
            self._counts[place] += count

    def collect(self) -> Iterator[HistogramMetricFamily]:
        total, buckets = 0, []
        for label, count in zip(self._labels, self._counts, strict=True):
            total += count
            buckets.append((label, float(total)))
        family = HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._micros / SECOND)
        family.add_sample(f"{self._name}_created", {}, self._created)
        yield family
