"""The endpoints under /channels."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from horarium.access.roles import Scope
from horarium.api.endpoints import Answer, Call, Endpoint, Example, Handlers, answer, no_content
from horarium.api.reading import is_name, job_name, new_name, read_cursor, write_cursor
from horarium.api.schemas import Page, PageQuery
from horarium.clock import to_text
from horarium.model.channels import AnyChannel, Untold
from horarium.model.secrets import MaybeSecret
from horarium.wire.channels import shown_channel
from horarium.wire.views import RunView, run_view


class UndeliveredView(Struct):
    """The message that a channel did not take, by the run that is to tell it."""

    run_id: str
    since: str
    error: str


class ChannelView(Struct, omit_defaults=True):
    """A channel as it is shown: secrets masked. Which fields it has, its type says."""

    name: str
    type: str
    group_seconds: float
    quiet_seconds: float
    system: bool
    url: MaybeSecret | None = None
    signing_secret: MaybeSecret | None = None
    to: tuple[str, ...] | None = None
    template: Any = None
    undelivered: UndeliveredView | None = None


class ChannelPage(Page[ChannelView]):
    """One page of channels, by name."""


EXAMPLES = (
    Example("webhook", {"type": "webhook", "url": "https://example.org/alerts"}),
    Example("email", {"type": "email", "to": ["ops@example.org"]}),
    Example(
        "template", {"type": "webhook", "url": "https://example.org/chat", "template": {"text": "{{message}} {{url}}"}}
    ),
)


class OtherChannel(Struct, forbid_unknown_fields=True):
    """The channel that tells instead."""

    by: str


class ChannelsApi(Handlers):
    @Endpoint(
        "PUT", "/channels/{name}", "putChannel", tag="channels", scope=Scope.ADMIN,
        summary="Define a channel, or replace it",
        description="Secrets are shown as asterisks, which keep what is stored when they are sent back.",
        body=AnyChannel, examples=EXAMPLES,
        answers={200: (ChannelView, "The channel"), 201: (ChannelView, "The new channel")},
    )  # fmt: skip
    async def put(self, call: Call) -> Answer:
        name = new_name(call.request)
        asked: AnyChannel = call.body
        channel, created = await self._operations.channels.put(name, asked)
        location = [("location", f"/api/v1/channels/{name}")] if created else []
        return answer(_view(name, channel), 201 if created else 200, location)

    @Endpoint(
        "GET", "/channels/{name}", "getChannel", tag="channels", scope=Scope.ADMIN,
        summary="Show a channel",
        answers={200: (ChannelView, "The channel")}, problems=("not_found",),
    )  # fmt: skip
    async def get(self, call: Call) -> Answer:
        name = job_name(call.request, "channel")
        return answer(_view(name, await self._operations.channels.get(name), await self._operations.channels.untold(0)))

    @Endpoint(
        "GET", "/channels", "listChannels", tag="channels", scope=Scope.ADMIN, query=PageQuery, costly=True,
        summary="Channels, by name",
        answers={200: (ChannelPage, "One page")}, problems=("invalid_cursor",),
    )  # fmt: skip
    async def list_all(self, call: Call) -> Answer:
        query: PageQuery = call.query
        page = await self._operations.channels.page(read_cursor("channels", query.cursor, is_name), query.limit)
        untold = await self._operations.channels.untold(0)
        items = [_view(name, channel, untold) for name, channel in page.items]
        return answer(ChannelPage(items, write_cursor("channels", page.next_after)))

    @Endpoint(
        "DELETE", "/channels/{name}", "deleteChannel", tag="channels", scope=Scope.ADMIN,
        summary="Delete a channel",
        answers={204: (None, "It is gone")}, problems=("not_found",),
    )  # fmt: skip
    async def delete(self, call: Call) -> Answer:
        await self._operations.channels.delete(job_name(call.request, "channel"))
        return no_content()

    @Endpoint(
        "POST", "/channels/{name}/test", "testChannel", tag="channels", scope=Scope.ADMIN,
        summary="Send a test message",
        description="The answer is the run that sends it, in one attempt; it says how that ended.",
        answers={202: (RunView, "The run that sends the message")}, problems=("not_found",),
    )  # fmt: skip
    async def test(self, call: Call) -> Answer:
        return answer(run_view(await self._operations.channels.test(job_name(call.request, "channel"))), 202)

    @Endpoint(
        "POST", "/channels/{name}/send-by", "sendByOtherChannel", tag="channels", scope=Scope.ADMIN,
        summary="Send by another channel what this one did not take",
        description="All its events in one message. They stay kept for this channel too.",
        body=OtherChannel, examples=(Example("mail", {"by": "mail-ops"}),),
        answers={202: (RunView, "The run that sends the message")}, problems=("not_found",),
    )  # fmt: skip
    async def send_by(self, call: Call) -> Answer:
        body: OtherChannel = call.body
        run = await self._operations.channels.send_by(job_name(call.request, "channel"), body.by)
        return answer(run_view(run), 202)


def _view(name: str, channel: AnyChannel, untold: Mapping[str, Untold] = MappingProxyType({})) -> ChannelView:
    said = untold.get(name)
    undelivered = None if said is None else UndeliveredView(said.run_id, to_text(said.since), said.error)
    return ChannelView(**shown_channel(name, channel), undelivered=undelivered)
