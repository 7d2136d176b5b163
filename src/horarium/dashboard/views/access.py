"""Keys and sessions: an admin makes and revokes keys, and ends sessions."""

from __future__ import annotations

from horarium.access.keys import ENTROPY_BYTES, Key, Keys, digest_of, new_token
from horarium.access.roles import Role, Scope
from horarium.access.sessions import Sessions, SignInSession
from horarium.api.access import API_KEY, key_view
from horarium.api.reading import is_name
from horarium.dashboard.formats import fault_in, instant_of
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit, Went
from horarium.dashboard.views.jobs import read_search
from horarium.errors import AlreadyExists, InvalidRequest
from horarium.operations.facade import Operations
from horarium.operations.writing.auditing import told
from horarium.operations.writing.context import Entropy
from horarium.ports import PAGE_MAX
from horarium.wire.faults import Fault

FIELDS = ("name", "role", "queues", "labels", "expires")
ID_CHARS_MAX = 100


class AccessPages(Pages):
    """The page at `/access`."""

    def __init__(self, operations: Operations, sessions: Sessions, entropy: Entropy) -> None:
        self._clock, self._entropy, self._sessions = operations.clock, entropy, sessions
        self._keys = Keys(operations.store, operations.clock)

    @Page("GET", "/access", "access", scope=Scope.ADMIN, place="access", tells_all=True)
    async def show(self, visit: Visit) -> Answer:
        return await self._page(visit)

    async def _page(self, visit: Visit, problem: Fault | None = None, made: str = "") -> Answer:
        keys, sessions = await self._keys.page(None, PAGE_MAX), await self._sessions.page(None, PAGE_MAX)
        own = digest_of(visit.token)
        values = {
            "keys": keys.items,
            "more_keys": keys.next_after is not None,
            "sessions": [(each, await self._who(each), each.digest == own) for each in sessions.items],
            "more_sessions": sessions.next_after is not None,
            "roles": [role.value for role in Role],
            "chosen": visit.texts("role") if problem else [Role.VIEWER.value],
            "form": {name: visit.text(name) if problem else "" for name in FIELDS},
            "problem": problem,
            "made": made,
            "named": visit.text("name"),
        }
        return Shown("access.html", values, 422 if problem else 201 if made else 200)

    async def _who(self, session: SignInSession) -> str:
        if session.person is not None:
            return session.person.name
        if session.credential == "server-key":
            return API_KEY.name
        return await self._keys.name_of(session.key) or "a key that was revoked"

    @Page("POST", "/access", "key-made", scope=Scope.ADMIN, place="access")
    async def create(self, visit: Visit) -> Answer:
        now, token = self._clock.now(), new_token(self._entropy(ENTROPY_BYTES))
        queues = tuple(visit.text("queues").replace(",", " ").split())
        labels = visit.text("labels").replace(",", " ").strip()
        try:
            bound = read_search(labels)[0]
            if labels and len(bound) != len(labels.split()):
                raise InvalidRequest("labels: they are written as team=billing", field="labels")
            if not all(map(is_name, queues)):
                raise InvalidRequest("queues: give names of queues, apart by spaces", field="queues")
            key = Key(
                name=visit.text("name").strip(),
                digest=digest_of(token),
                roles=tuple(role for role in Role if role.value in visit.texts("role")),
                queues=queues or None,
                labels=bound or None,
                expires_at=instant_of(visit.text("expires"), "expires", visit.zone),
                created_at=now,
            )
            await self._keys.add(key, told("key.create", f"key/{key.name}", now, after=key_view(key)))
        except (InvalidRequest, AlreadyExists) as error:
            return await self._page(visit, fault_in(error, FIELDS, {"roles": "role", "expires_at": "expires"}))
        return await self._page(visit, made=token)

    @Page("POST", "/access/revoke", "key-revoke", scope=Scope.ADMIN)
    async def revoke(self, visit: Visit) -> Answer:
        name = visit.text("name")[: ID_CHARS_MAX * 2]
        await self._keys.revoke(name, told("key.revoke", f"key/{name}", self._clock.now()))
        return Went("/access", f"{name} opens nothing any more; within five seconds on every node.")

    @Page("POST", "/access/end", "session-end", scope=Scope.ADMIN)
    async def end(self, visit: Visit) -> Answer:
        id = visit.text("session")[:ID_CHARS_MAX]
        await self._sessions.end_by_id(id, told("session.end", f"session/{id}", self._clock.now()))
        return Went("/access", "The session is over; within five seconds on every node.")
