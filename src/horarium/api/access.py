"""Who asks: named keys and access tokens, and what the API says of them.

Authentication ends in a `Principal`; whether it may do what it asks is one comparison with the scope that the route
declares, made before the body is read and before anything is looked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from horarium.access import audit
from horarium.access.audit import AuditFilter, Entry
from horarium.access.keys import ENTROPY_BYTES, QUEUES_MAX, TOKEN_PREFIX, Key, Keys, digest_of, new_token
from horarium.access.roles import Kind, Principal, Role, Scope, principal
from horarium.access.sessions import Sessions, SignInSession
from horarium.access.tokens import DOTS, ClaimsRefused, Tokens
from horarium.api.endpoints import Answer, Call, Endpoint, Handlers, answer, no_content
from horarium.api.reading import own_url, read_cursor, write_cursor
from horarium.api.schemas import Page, PageQuery
from horarium.clock import INSTANT_MAX, Instant, moment, to_datetime, to_instant, to_text
from horarium.errors import Forbidden, NotFound
from horarium.model import Name
from horarium.model.labels import Labels
from horarium.operations.facade import Operations
from horarium.operations.writing.auditing import told
from horarium.operations.writing.context import Entropy
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


class KeyPage(Page[KeyView]):
    """One page of keys, by name."""


class SessionView(Struct):
    """A sign-in to the dashboard. `kind`: by what it was opened: a key of the server, a named key, or a person at the
    issuer. `name`: of the key or person (null: the key was revoked)."""

    id: str
    kind: Literal["server-key", "key", "person"]
    name: str | None
    created_at: datetime
    ends_at: datetime


class SessionPage(Page[SessionView]):
    """One page of sessions, the soonest end first."""


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


class AuditPage(Page[AuditEntry]):
    """One page of the audit, the newest first."""


CURSOR_CHARS_MAX = 1_000
NAME_CHARS_MAX = 200
NAMED = TOKEN_PREFIX.encode()
API_KEY = principal("api-key", "api-key", "key", [Role.ADMIN])
"""Who bears one of the keys that the server was started with."""
REPORTER = principal("endpoint", "endpoint", "key", [Role.WORKER])
"""Who bears the report key of one run."""


UNCOUNTED = "getMe"
"""It costs nothing: each tool of an agent asks it too."""
Spend = Callable[[int], Awaitable[None]]


def has_budget(caller: Principal) -> bool:
    """Whether what it asks for is counted."""
    return caller.calls_per_hour is not None or caller.runs_per_day is not None


class Callers:
    """The named keys and the tokens that open this server."""

    def __init__(self, keys: Keys, tokens: Tokens | None) -> None:
        self._keys, self._tokens = keys, tokens

    @property
    def ask(self) -> bool:
        """Whether callers must be known, by a token at least."""
        return self._tokens is not None

    async def bearer(self, digest: str) -> Principal | None:
        """Who bears the named key of this digest and may look at pages: one with a budget has none for these."""
        found = await self._keys.find_digest(digest)
        return None if found is None or has_budget(found) else found

    async def count(self, caller: Principal, name: str) -> Spend | None:
        """Count a call of this route, and how its runs are to be counted, if the caller has a budget. Raises
        OverBudget."""
        if not has_budget(caller):
            return None
        if name == "door" and caller.runs_per_day is not None:
            raise Forbidden("a key with a budget of runs opens no door of another scheduler")
        if name != UNCOUNTED:
            await self._keys.spend(caller, "calls")
        return None if caller.runs_per_day is None else lambda count: self._keys.spend(caller, "runs", count)

    async def find(self, given: bytes, digest: bytes) -> Principal | None:
        """Who bears this; `digest`: SHA-256 of it. Raises TokenRefused, IssuerUnavailable."""
        if given.startswith(NAMED):
            found = await self._keys.find_digest(digest.hex())
            if found is None and (ended := await self._keys.ended(digest.hex())) is not None:
                raise ClaimsRefused(f"the key {ended.name!r} ended at {to_text(ended.expires_at or 0)}")
            return found
        if self._tokens is None or given.count(b".") < DOTS:
            return None
        return await self._tokens.find(given.decode("latin-1"), digest)


def require_scope(caller: Principal, scope: Scope | None) -> None:
    """Raises Forbidden."""
    missing = caller.missing(scope) if scope is not None else []
    if missing:
        raise Forbidden(f"{caller.name} may not do this; it takes the scope {', '.join(missing)}", missing)


def require_queues(caller: Principal, queues: list[str]) -> None:
    """Raises Forbidden if the caller may not work on each of these pulled queues."""
    others = [queue for queue in queues if not caller.may_serve(queue)]
    if others:
        raise Forbidden(f"{caller.name} works on other queues than {', '.join(others)}", [Scope.WORK])


class AccessApi(Handlers):
    """Handlers for who asks, for keys, and for the audit."""

    def __init__(self, operations: Operations, keys: Keys, entropy: Entropy) -> None:
        super().__init__(operations)
        self._keys, self._entropy = keys, entropy
        self._sessions = Sessions(operations.store, operations.clock, entropy)

    @Endpoint(
        "GET", "/me", "getMe", tag="access",
        summary="Who asks, and what it may",
        answers={200: (Me, "Who asks")},
    )  # fmt: skip
    async def me(self, call: Call) -> Answer:
        caller = call.principal
        queues = None if caller.queues is None else sorted(caller.queues)
        scopes = [scope.value for scope in Scope if scope in caller.scopes]
        labels = UNSET if caller.labels is None else list(caller.labels)
        return answer(Me(caller.subject, caller.name, caller.kind, list(caller.roles), scopes, queues, labels))

    @Endpoint(
        "POST", "/keys", "createKey", tag="access", scope=Scope.ADMIN,
        summary="Make a key; it is shown this once",
        body=KeyRequest,
        answers={201: (KeyMade, "The key")}, problems=("already_exists",),
    )  # fmt: skip
    async def create_key(self, call: Call) -> Answer:
        asked: KeyRequest = call.body
        now, token = self._clock.now(), new_token(self._entropy(ENTROPY_BYTES))
        key = Key(
            name=asked.name,
            digest=digest_of(token),
            roles=tuple(asked.roles),
            queues=None if asked.queues is None else tuple(asked.queues),
            labels=asked.labels,
            calls_per_hour=asked.calls_per_hour,
            runs_per_day=asked.runs_per_day,
            expires_at=_instant(asked.expires_at),
            created_at=now,
        )
        shown = key_view(key)
        await self._keys.add(key, told("key.create", f"key/{key.name}", now, after=shown))
        return answer(KeyMade(**{name: getattr(shown, name) for name in shown.__struct_fields__}, key=token), 201)

    @Endpoint(
        "GET", "/keys", "listKeys", tag="access", scope=Scope.ADMIN, query=PageQuery, costly=True,
        summary="Keys, by name",
        answers={200: (KeyPage, "One page")}, problems=("invalid_cursor",),
    )  # fmt: skip
    async def list_keys(self, call: Call) -> Answer:
        query: PageQuery = call.query
        page = await self._keys.page(read_cursor("keys", query.cursor, _fits), query.limit)
        return answer(KeyPage([key_view(key) for key in page.items], write_cursor("keys", page.next_after)))

    @Endpoint(
        "DELETE", "/keys/{name}", "revokeKey", tag="access", scope=Scope.ADMIN,
        summary="Revoke a key; within five seconds it opens nothing on any node",
        answers={204: (None, "It is gone")}, problems=("not_found",),
    )  # fmt: skip
    async def revoke_key(self, call: Call) -> Answer:
        name, now = str(call.request.path_params["name"]), self._clock.now()
        if not _fits(name):
            raise NotFound(f"there is no key {name[:200]!r}")
        await self._keys.revoke(name, told("key.revoke", f"key/{name}", now))
        return no_content()

    @Endpoint(
        "GET", "/sessions", "listSessions", tag="access", scope=Scope.ADMIN, query=PageQuery, costly=True,
        summary="Who is signed in to the dashboard, the soonest end first",
        answers={200: (SessionPage, "One page")}, problems=("invalid_cursor",),
    )  # fmt: skip
    async def list_sessions(self, call: Call) -> Answer:
        query: PageQuery = call.query
        page = await self._sessions.page(read_cursor("sessions", query.cursor, _fits), query.limit)
        items = [await self._session_view(each) for each in page.items]
        return answer(SessionPage(items, write_cursor("sessions", page.next_after)))

    async def _session_view(self, session: SignInSession) -> SessionView:
        name = API_KEY.name if session.credential == "server-key" else await self._keys.name_of(session.key)
        name = name if session.person is None else session.person.name
        ends = to_datetime(session.ends_at)
        return SessionView(session.id, session.credential, name, to_datetime(session.created_at), ends)

    @Endpoint(
        "DELETE", "/sessions/{session}", "endSession", tag="access", scope=Scope.ADMIN,
        summary="End a session; within five seconds it opens nothing on any node",
        answers={204: (None, "It is over")}, problems=("not_found",),
    )  # fmt: skip
    async def end_session(self, call: Call) -> Answer:
        id = str(call.request.path_params["session"])[:NAME_CHARS_MAX]
        await self._sessions.end_by_id(id, told("session.end", f"session/{id}", self._clock.now()))
        return no_content()

    @Endpoint(
        "GET", "/audit", "listAudit", tag="access", scope=Scope.ADMIN, query=AuditQuery, costly=True,
        summary="What was changed, by whom; the newest first",
        answers={200: (AuditPage, "One page")}, problems=("invalid_cursor",),
    )  # fmt: skip
    async def list_audit(self, call: Call) -> Answer:
        query: AuditQuery = call.query
        where = AuditFilter(
            actor=query.actor or None,
            action=query.action or None,
            object=query.object or None,
            since=_instant(query.since),
            until=_instant(query.until),
        )
        page = await audit.page(self._operations.store, where, read_cursor("audit", query.cursor, _fits), query.limit)
        return answer(AuditPage([_entry(line) for line in page.items], write_cursor("audit", page.next_after)))


class SignInPlace(Handlers):
    """Where callers get their tokens (RFC 9728), for clients that know nothing but this server's address."""

    def __init__(self, tokens: Tokens | None, client_id: str | None, public_url: str | None) -> None:
        self._tokens, self._client_id, self._public_url = tokens, client_id, public_url

    @Endpoint(
        "GET", "/.well-known/oauth-protected-resource", "getSignInPlace", tag="access", open=True,
        summary="Where callers of this server get their tokens (RFC 9728)",
        answers={200: (ProtectedResource, "The issuer, and the client to sign in with")}, problems=("not_found",),
    )  # fmt: skip
    async def show(self, call: Call) -> Answer:
        tokens = self._tokens
        if tokens is None:
            raise NotFound("this server trusts no issuer of tokens; it takes keys")
        place = ProtectedResource(
            resource=own_url(self._public_url, call.request),
            authorization_servers=[tokens.issuer],
            bearer_methods_supported=["header"],
            scopes_supported=[scope.value for scope in Scope],
            horarium_client_id=self._client_id,
            horarium_audience=tokens.audience,
        )
        return answer(place)


def _fits(after: str) -> bool:
    return 0 < len(after) <= CURSOR_CHARS_MAX and "\0" not in after


def _instant(at: datetime | UnsetType | None) -> Instant | None:
    """When a key ends. (9999 is how many write that it never does.)"""
    return min(max(to_instant(at), 0), INSTANT_MAX) if isinstance(at, datetime) else None


def key_view(key: Key) -> KeyView:
    return KeyView(
        name=key.name,
        roles=list(key.roles),
        queues=None if key.queues is None else list(key.queues),
        labels=UNSET if key.labels is None else key.labels,
        calls_per_hour=UNSET if key.calls_per_hour is None else key.calls_per_hour,
        runs_per_day=UNSET if key.runs_per_day is None else key.runs_per_day,
        created_at=to_datetime(key.created_at),
        expires_at=moment(key.expires_at),
        last_used_at=moment(key.last_used_at),
    )


def _entry(line: Entry) -> AuditEntry:
    return AuditEntry(
        id=line.id,
        at=to_datetime(line.at),
        actor=line.actor,
        kind=line.kind,
        action=line.action,
        object=line.object,
        outcome=line.outcome,
        before=UNSET if line.before is None else line.before,
        after=UNSET if line.after is None else line.after,
        request_id=line.request_id,
        address=line.address,
    )
