"""The shapes of requests and answers about callers, keys and the audit."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from horarium.access.keys import QUEUES_MAX
from horarium.access.roles import Kind, Role
from horarium.api.schemas import PageQuery
from horarium.model import Name
from horarium.model.labels import Labels
from horarium.wire.definitions import Moment

Asked = Annotated[str, Meta(min_length=1, max_length=500, pattern=r"^[^\x00]*(?!\n)$")]
Actor = Annotated[Asked, Meta(description="Only what this subject did.")]
Action = Annotated[Asked, Meta(description="Only this action, e.g. `key.create`.")]
Object = Annotated[Asked, Meta(description="Only what was done to this, e.g. `key/ci`.")]
AuditSince = Annotated[datetime, Meta(tz=True, description="Entries from this instant on (RFC 3339).")]
AuditUntil = Annotated[datetime, Meta(tz=True, description="Entries before this instant (RFC 3339).")]


Budget = Annotated[int, Meta(ge=1, le=1_000_000_000, description="More are answered 429 `over_budget`.")]


class Me(Struct):
    """Who asks. `queues`: those to which the caller is bound; null: it is not. `labels`: the sets of labels of which
    all that it sees has one."""

    subject: str
    name: str
    kind: Kind
    roles: list[Role]
    scopes: list[str]
    queues: list[str] | None
    labels: list[dict[str, str]] | UnsetType = UNSET


class ProtectedResource(Struct):
    """Where callers of this server get their tokens, as RFC 9728 says; `horarium_client_id` and `horarium_audience`:
    with which client people sign in, and what their tokens must be for (null: not set)."""

    resource: str
    authorization_servers: list[str]
    bearer_methods_supported: list[str]
    scopes_supported: list[str]
    horarium_client_id: str | None
    horarium_audience: str | None


class KeyRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A key to make. `queues` bind it to the jobs and runs of these, `labels` to those that have these; a key with the
    role `admin` takes neither."""

    name: Name
    roles: Annotated[list[Role], Meta(min_length=1, max_length=10)]
    queues: Annotated[list[Name], Meta(min_length=1, max_length=QUEUES_MAX)] | None = None
    labels: Annotated[Labels, Meta(min_length=1)] | None = None
    calls_per_hour: Budget | None = None
    runs_per_day: Budget | None = None
    expires_at: Moment | None = None


class KeyView(Struct, kw_only=True):
    """A key without its secret, which is kept nowhere. `last_used_at`: to the minute."""

    name: str
    roles: list[Role]
    queues: list[str] | None
    labels: dict[str, str] | UnsetType = UNSET
    calls_per_hour: int | UnsetType = UNSET
    runs_per_day: int | UnsetType = UNSET
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


class KeyMade(KeyView, kw_only=True):
    """A new key: the only time that `key` is shown."""

    key: str


class KeyPage(Struct):
    """One page of keys, by name."""

    items: list[KeyView]
    next_cursor: str | None


class SessionView(Struct):
    """A sign-in to the dashboard. `kind`: by what it was opened: a key of the server, a named key, or a person at the
    issuer. `name`: of the key or person (null: the key was revoked)."""

    id: str
    kind: Literal["server-key", "key", "person"]
    name: str | None
    created_at: datetime
    ends_at: datetime


class SessionPage(Struct):
    """One page of sessions, the soonest end first."""

    items: list[SessionView]
    next_cursor: str | None


class AuditQuery(PageQuery, forbid_unknown_fields=True, kw_only=True):
    """Which entries to list."""

    actor: Actor | UnsetType = UNSET
    action: Action | UnsetType = UNSET
    object: Object | UnsetType = UNSET
    since: AuditSince | UnsetType = UNSET
    until: AuditUntil | UnsetType = UNSET


class AuditEntry(Struct, kw_only=True):
    """One change: who made it, to what, and what it was before and after (secrets masked)."""

    id: str
    at: datetime
    actor: str
    kind: Kind
    action: str
    object: str
    outcome: Literal["done", "refused"]
    before: Any | UnsetType = UNSET
    after: Any | UnsetType = UNSET
    request_id: str
    address: str


class AuditPage(Struct):
    """One page of the audit, the newest first."""

    items: list[AuditEntry]
    next_cursor: str | None
