"""Things that are kept under a name, each as a record: found, listed, and changed if they are as they were read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from horarium.errors import NotFound
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.operations.writing.context import RACES_MAX, Context, Entropy, contended, pause_after
from horarium.ports import PAGE_MAX, Page, Store

T = TypeVar("T")

SECRET_BYTES = 32


class Kept(Generic[T]):
    """Those of one `kind`; the name of a record is `prefix` and its own name."""

    def __init__(self, context: Context, kind: str, prefix: str, decode: Callable[[bytes], T]) -> None:
        self._store, self._entropy = context.store, context.entropy
        self._kind, self._prefix, self._decode = kind, prefix, decode

    async def find(self, name: str) -> T | None:
        """The one of that name."""
        (stored,) = await self._store.get_records([self._prefix + name])
        return None if stored is None else self._decode(stored.body)

    async def get(self, name: str) -> T:
        """The one of that name. Raises NotFound."""
        found = await self.find(name)
        if found is None:
            raise self.missing(name)
        return found

    async def page(self, after: str | None, limit: int, beginning: str = "") -> Page[tuple[str, T]]:
        """Each with its name, in their order, beginning after that name; at most 200. `beginning`: of the names."""
        where = RecordFilter(self._prefix + beginning)
        page = await page_under(self._store, where, self._prefix, after, limit)
        return Page(tuple((name, self._decode(record.body)) for name, record in page.items), page.next_after)

    async def change(
        self, name: str, wanted: Callable[[Record | None], Awaitable[RecordChange | None]]
    ) -> RecordChange | None:
        """Write the wanted form of the stored value; where another writer was quicker, that is asked again. None: there
        is nothing to change. Raises Conflict, and what `wanted` raises."""
        for race in range(RACES_MAX):
            if race:
                await pause_after(race, self._entropy)
            (stored,) = await self._store.get_records([self._prefix + name])
            change = await wanted(stored)
            if change is None or await self._store.put_records([change]) == [True]:
                return change
        raise contended(f"{self._kind} {name}")

    def missing(self, name: str) -> NotFound:
        """The error where there is none of that name."""
        return NotFound(f"there is no {self._kind} named {name!r}")


async def page_under(
    store: Store, where: RecordFilter, prefix: str, after: str | None, limit: int
) -> Page[tuple[str, Record]]:
    """Records, at most 200, each with its name behind the prefix; so is the place after which they begin."""
    page = await store.list_records(where, None if after is None else prefix + after, min(limit, PAGE_MAX))
    items = tuple((record.name.removeprefix(prefix), record) for record in page.items)
    return Page(items, None if page.next_after is None else page.next_after.removeprefix(prefix))


class Secret:
    """A secret that all nodes of a store share: the record of this name, made at the first need."""

    def __init__(self, name: str, store: Store, entropy: Entropy) -> None:
        self._name, self._store, self._entropy = name, store, entropy
        self._known: bytes | None = None

    async def read(self) -> bytes:
        while self._known is None:
            (stored,) = await self._store.get_records([self._name])
            if stored is None:
                made = Record(name=self._name, body=self._entropy(SECRET_BYTES))
                await self._store.put_records([RecordChange(made)])
            else:
                self._known = stored.body
        return self._known
