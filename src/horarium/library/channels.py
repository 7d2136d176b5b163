"""Where notifications go, as a `Scheduler` defines it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from horarium.errors import InvalidRequest
from horarium.library.named import Part, in_name_of_actor
from horarium.library.values import Run
from horarium.model import Name
from horarium.model.channels import AnyChannel
from horarium.operations.bounds.listing import pages_of
from horarium.ports import PAGE_MAX
from horarium.wire.channels import shown_channel
from horarium.wire.faults import fault_of, find_faults, say_faults


class ChannelMethods(Part):
    """The channels of a scheduler, as plain data: the fields of docs/notifications.md, secrets masked."""

    @in_name_of_actor
    async def put_channel(self, name: str, channel: Mapping[str, Any], *, actor: str | None = None) -> dict[str, Any]:
        """Define the channel `name`, or replace it: `{"type": "webhook", "url": ...}`, `{"type": "email", "to": [...]}`
        or `{"type": "apprise", "url": ...}`. Raises InvalidRequest."""
        defined, _ = await self._operations.channels.put(converted(name, Name, "name"), converted(channel, AnyChannel))
        return shown_channel(name, defined)

    async def get_channel(self, name: str) -> dict[str, Any]:
        """The channel of that name. Raises NotFound."""
        return shown_channel(name, await self._operations.channels.get(name))

    async def list_channels(self) -> list[dict[str, Any]]:
        """All channels, by name."""
        pages = pages_of(lambda after: self._operations.channels.page(after, PAGE_MAX))
        return [shown_channel(name, channel) async for page in pages for name, channel in page]

    @in_name_of_actor
    async def delete_channel(self, name: str, *, actor: str | None = None) -> None:
        """Remove a channel. Raises NotFound."""
        await self._operations.channels.delete(name)

    @in_name_of_actor
    async def test_channel(self, name: str, *, actor: str | None = None) -> Run:
        """Send a test message: the run that does it, in one attempt. Raises NotFound."""
        return Run(await self._operations.channels.test(name))


def converted(value: Any, kind: Any, path: str = "") -> Any:
    """Plain data as a value of ours. Raises InvalidRequest that names each wrong field."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        faults = find_faults(value, kind, path=path) or [fault_of(error)]
        raise InvalidRequest(say_faults(faults), field=faults[0].field or None) from None
