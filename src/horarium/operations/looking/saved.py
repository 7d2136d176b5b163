"""Saved views: filters of lists that are kept by name, for one person, or for everyone who signs in."""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec import Struct

from horarium.access.roles import Principal
from horarium.errors import InvalidRequest, NotFound
from horarium.model.records import Record, RecordChange, put_over
from horarium.operations.writing.auditing import told
from horarium.operations.writing.context import Context
from horarium.operations.writing.keeping import Kept

PREFIX = "view/"
NAME_CHARS_MAX = 60
ADDRESS_CHARS_MAX = 1_000
VIEWS_MAX = 50
"""Of one person, and of the team."""
TEAM = f"{PREFIX}team/"


class SavedView(Struct, frozen=True):
    """An address within this server, by its name."""

    name: str
    to: str
    shared: bool = False


_decode = msgspec.json.Decoder(SavedView).decode


class SavedViews:
    """The views of one namespace. Raises the errors of `errors`, nothing else."""

    def __init__(self, context: Context) -> None:
        self._context, self._clock = context, context.clock

    async def of(self, person: Principal, path: str = "") -> list[SavedView]:
        """Those of a person, then those of the team, by name; with `path`, those of this page alone."""
        views = [*await self._under(_prefix(person)), *await self._under(TEAM)]
        return [view for view in views if not path or view.to.partition("?")[0] == path]

    async def _under(self, prefix: str) -> list[SavedView]:
        return [view for _, view in (await self._kept(prefix).page(None, VIEWS_MAX)).items]

    async def save(self, person: Principal, name: str, to: str, *, shared: bool = False) -> None:
        """Keep this address under that name, in place of an earlier one. Raises InvalidRequest."""
        if not 0 < len(name) <= NAME_CHARS_MAX:
            raise InvalidRequest(f"name: give the view a name of 1 to {NAME_CHARS_MAX} characters", field="name")
        if not to.startswith("/") or to.startswith("//") or "\\" in to or len(to) > ADDRESS_CHARS_MAX:
            raise InvalidRequest("to: is no address of a list here", field="to")
        prefix, body = TEAM if shared else _prefix(person), msgspec.json.encode(SavedView(name, to, shared))

        async def wanted(stored: Record | None) -> RecordChange:
            if stored is None and len(await self._under(prefix)) >= VIEWS_MAX:
                raise InvalidRequest(f"name: {VIEWS_MAX} views are kept; remove one first", field="name")
            line = told("view.save", f"view/{name}", self._clock.now(), after={"to": to, "shared": shared})
            return put_over(stored, prefix + name, body, line)

        await self._kept(prefix).change(name, wanted)

    async def remove(self, person: Principal, name: str, *, shared: bool = False) -> SavedView:
        """Delete it. Raises NotFound."""

        async def wanted(stored: Record | None) -> RecordChange:
            if stored is None:
                raise NotFound(f"no view {name[:NAME_CHARS_MAX]!r} is kept")
            line = told("view.remove", f"view/{name}", self._clock.now(), before={"to": _decode(stored.body).to})
            return RecordChange(stored, stored.version, True, line)

        change = await self._kept(TEAM if shared else _prefix(person)).change(name, wanted)
        assert change is not None
        return _decode(change.record.body)

    def _kept(self, prefix: str) -> Kept[SavedView]:
        return Kept(self._context, "view", prefix, _decode)


def _prefix(person: Principal) -> str:
    whose = sha256(f"{person.kind}/{person.subject}".encode("utf-8", "replace")).hexdigest()[:24]
    return f"{PREFIX}{whose}/"
