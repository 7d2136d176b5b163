"""Where notifications go: a channel, and what one message on it says."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, Struct, UnsetType

from horarium.clock import Instant
from horarium.model.batches import BatchTold
from horarium.model.limits import URL_CHARS_MAX
from horarium.model.secrets import MaybeSecret, SecretRef

CHANNEL = "channel/"
"""The record of a channel is named by this and its name."""
UNTOLD = "untold/"
"""The record of a channel that did not take its last message."""
RECIPIENTS_MAX = 50
EVENTS_MAX = 50
"""Different events in one message."""
MEMBERS_MAX = 1_000
"""Notifications that one message tells."""
MESSAGE_CHARS_MAX = 500
TEMPLATE_CHARS_MAX = 8_192

Address = Annotated[str, Meta(max_length=320, pattern=r"^[^@\s<>,;]+@[^@\s<>,;]+(?!\n)$")]
GroupSeconds = Annotated[float, Meta(ge=0, le=600)]
QuietSeconds = Annotated[float, Meta(ge=0, le=24 * 3600)]
Text = Annotated[str, Meta(min_length=1, max_length=TEMPLATE_CHARS_MAX)]


class Channel(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="type"):
    """The common fields of channels. `group_seconds`: how long a message waits for more of the same. `quiet_seconds`:
    how long no further message is sent of one kind of trouble of one job, unless the job worked in between; later
    events are one message after it. `system`: whether it gets events of the system: a queue that no worker serves, a
    node that is lost."""

    group_seconds: GroupSeconds = 1.0
    quiet_seconds: QuietSeconds = 3600.0
    system: bool = True


class WebhookChannel(Channel, tag="webhook", frozen=True, kw_only=True):
    """A signed POST to a URL, after Standard Webhooks. `signing_secret` is write-only; left out, the server's signs.
    `template`: the body, any JSON value, with placeholders in its strings."""

    url: Annotated[str, Meta(min_length=1, max_length=URL_CHARS_MAX)] | SecretRef
    signing_secret: MaybeSecret | None = None
    template: Any = None
    kind: ClassVar[str] = "webhook"


class EmailChannel(Channel, tag="email", frozen=True, kw_only=True):
    """A message by the server of the setting `smtp_url`. `template`: its text, with placeholders."""

    to: Annotated[tuple[Address, ...], Meta(min_length=1, max_length=RECIPIENTS_MAX)]
    template: Text | None = None
    kind: ClassVar[str] = "email"


class AppriseChannel(Channel, tag="apprise", frozen=True, kw_only=True):
    """Any service that the library `apprise` speaks to. The URL is write-only: it holds the service's keys.
    `template`: the text, with placeholders."""

    url: Annotated[str, Meta(min_length=1, max_length=URL_CHARS_MAX)] | SecretRef
    template: Text | None = None
    kind: ClassVar[str] = "apprise"


AnyChannel = WebhookChannel | EmailChannel | AppriseChannel


class Told(Struct, frozen=True):
    """One event, as a channel hears it. `count`: how often it happened; the rest is of the last time. Of a run that was
    at work: `attempt`, `worker`, `seconds` from its begin to its end, the `exit_code` of a program, the
    end of its `output` or of the log, and the `url` of the run in the dashboard. `batch`: the counts of a batch."""

    event: str
    job: str | None
    run_id: str | None
    fire_at: str | None
    at: str
    message: str
    count: int = 1
    attempt: int | UnsetType = UNSET
    worker: str | UnsetType = UNSET
    seconds: float | UnsetType = UNSET
    exit_code: int | UnsetType = UNSET
    output: str | UnsetType = UNSET
    batch: BatchTold | UnsetType = UNSET
    url: str | UnsetType = UNSET


class Note(Struct, frozen=True):
    """The payload of a run of the queue `notify`: one event for one channel."""

    channel: str
    event: Told


class Untold(Struct, frozen=True):
    """The message that a channel did not take: of the record `untold/CHANNEL`, until it takes one. `since`: when it was
    tried first; `at`: last."""

    run_id: str
    since: Instant
    at: Instant
    error: str


class Taken(Struct, frozen=True, omit_defaults=True):
    """The result of a mail that not all recipients were allowed to get. `refused`: the answers of the mail server about
    the others; `again`: those of them who are to get it later."""

    refused: dict[str, str] = {}
    again: tuple[str, ...] = ()


class Letter(Struct, frozen=True):
    """One message. `id` is the same however often it is sent; `members`: the other notifications that it tells; `to`:
    the recipients that are left, where a mail server took it for the others."""

    id: str
    channel: str
    at: Instant
    events: tuple[Told, ...]
    members: tuple[str, ...] = ()
    to: tuple[str, ...] = ()
