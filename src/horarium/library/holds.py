"""What may not begin, as a `Scheduler` says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from horarium.library.channels import converted
from horarium.library.named import Part, in_name_of_actor
from horarium.model.holds import Hold


class HoldMethods(Part):
    """The holds of a scheduler, as plain data: the fields of docs/holds.md."""

    @in_name_of_actor
    async def add_hold(self, hold: Mapping[str, Any], *, actor: str | None = None) -> dict[str, Any]:
        """Let nothing begin of what its scope says, such as `{"scope": {"queue": "images"}, "reason": "moving"}`.
        Raises InvalidRequest."""
        from horarium.wire.holds import HoldDefinition

        return self._shown_hold(await self._operations.holds.add(converted(hold, HoldDefinition)))

    async def get_hold(self, id: str) -> dict[str, Any]:
        """The hold of that id, ended or not. Raises NotFound."""
        return self._shown_hold(await self._operations.holds.get(id))

    async def list_holds(self, active: bool | None = None) -> list[dict[str, Any]]:
        """Those that have not ended, oldest first; with `active`, those that are in force, or are not."""
        page = await self._operations.holds.page(active, None, 1_000)
        return [self._shown_hold(hold) for hold in page.items]

    @in_name_of_actor
    async def update_hold(self, id: str, changes: Mapping[str, Any], *, actor: str | None = None) -> dict[str, Any]:
        """Change `until` (None: until it is lifted) or `reason`. Raises NotFound, InvalidRequest, and Conflict for one
        that has ended."""
        from horarium.wire.holds import HoldPatch

        return self._shown_hold(await self._operations.holds.update(id, converted(changes, HoldPatch)))

    @in_name_of_actor
    async def lift_hold(self, id: str, *, actor: str | None = None) -> None:
        """End it: what waited goes on. Raises NotFound."""
        await self._operations.holds.lift(id)

    def _shown_hold(self, hold: Hold) -> dict[str, Any]:
        from horarium.wire.holds import hold_view

        shown: dict[str, Any] = msgspec.to_builtins(hold_view(hold, self._operations.clock.now()))
        return shown
