"""Single fire times of jobs, skipped or moved, as a `Scheduler` does it."""

from __future__ import annotations

from datetime import datetime

from horarium.library.named import Part, in_name_of_actor
from horarium.model.overrides import OVERRIDES_MAX
from horarium.wire.overrides import OverrideView, override_view, override_views


class OverrideMethods(Part):
    """The overrides of a scheduler's jobs (docs/overrides.md)."""

    @in_name_of_actor
    async def skip_fire(
        self, name: str, fire_at: datetime, reason: str | None = None, *, actor: str | None = None
    ) -> OverrideView:
        """The job does not run for this fire time. Raises NotFound, NoSuchFire where its rule does not yield it,
        AlreadyBegun."""
        return override_view(await self._operations.overriding.skip(name, fire_at, reason))

    @in_name_of_actor
    async def move_fire(
        self, name: str, fire_at: datetime, to: datetime, reason: str | None = None, *, actor: str | None = None
    ) -> OverrideView:
        """The run of this fire time is due at another instant. Raises as `skip_fire`, and InvalidRequest."""
        return override_view(await self._operations.overriding.move(name, fire_at, to, reason))

    @in_name_of_actor
    async def unskip_fire(self, name: str, fire_at: datetime, *, actor: str | None = None) -> None:
        """The fire time is as its rule has it again, whether it was skipped or moved. Raises as `skip_fire`."""
        await self._operations.overriding.lift(name, fire_at)

    async def list_overrides(self, name: str) -> list[OverrideView]:
        """The fire times of a job that are skipped or moved, earliest first. Raises NotFound."""
        found, _ = await self._operations.overriding.page(name, None, OVERRIDES_MAX)
        return override_views(found)
