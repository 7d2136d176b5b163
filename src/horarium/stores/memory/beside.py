"""What a namespace holds besides its jobs and runs: its nodes, and its records in the order of their names."""

from __future__ import annotations

from collections.abc import Iterable

from horarium.model import Node
from horarium.model.records import Record
from horarium.stores.memory.ordered import Ordered


class Beside:
    """Nodes by name; records by name."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.records: dict[str, Record] = {}
        self.names: Ordered[str] = Ordered()

    def add(self, records: Iterable[Record]) -> None:
        """Insert records, except those whose names are taken."""
        for record in records:
            if record.name not in self.records:
                self.put(record)

    def put(self, record: Record) -> None:
        """Insert a record, or write it over the one of its name."""
        if record.name not in self.records:
            self.names.add(record.name)
        self.records[record.name] = record

    def forget(self, name: str) -> None:
        """Remove a record, if there is one of this name."""
        if self.records.pop(name, None) is not None:
            self.names.remove(name)
