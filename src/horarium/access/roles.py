"""Scopes, roles, and who asks: data and pure functions.

A role is a set of scopes; several roles are their union. A key that names queues is bound to them, with all that it
may do: the jobs and runs of these it sees and touches, and no others. No admin has such a key.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from horarium.errors import Forbidden

Kind = Literal["key", "oidc", "local"]


class Scope(StrEnum):
    """What a request may need."""

    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"
    RUNS_READ = "runs:read"
    RUNS_WRITE = "runs:write"
    """Trigger a job as it is, cancel, retry, backfill, pause, resume."""
    RUNS_DEFINE = "runs:define"
    """Runs with a target or a payload of their own."""
    WORK = "work"
    ADMIN = "admin"


class Role(StrEnum):
    """Names for sets of scopes."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    PRODUCER = "producer"
    EDITOR = "editor"
    WORKER = "worker"
    ADMIN = "admin"


_READS = frozenset({Scope.JOBS_READ, Scope.RUNS_READ})
_OPERATOR = _READS | {Scope.RUNS_WRITE}
_PRODUCER = frozenset({Scope.RUNS_READ, Scope.RUNS_DEFINE})

SCOPES: dict[Role, frozenset[Scope]] = {
    Role.VIEWER: _READS,
    Role.OPERATOR: _OPERATOR,
    Role.PRODUCER: _PRODUCER,
    Role.EDITOR: _OPERATOR | _PRODUCER | {Scope.JOBS_WRITE},
    Role.WORKER: frozenset({Scope.WORK}),
    Role.ADMIN: frozenset(Scope),
}


class Principal(Struct, frozen=True, kw_only=True):
    """Who asks. `subject` is what it is called for good, `name` what people call it. `queues`: the pulled queues to
    which it is bound (None: it is not)."""

    subject: str
    name: str
    kind: Kind
    roles: tuple[Role, ...] = ()
    scopes: frozenset[Scope] = frozenset()
    queues: frozenset[str] | None = None

    def missing(self, needed: Scope) -> list[Scope]:
        """What it lacks for this."""
        return [] if needed in self.scopes else [needed]

    def require(self, scope: Scope) -> None:
        """Raises Forbidden if it lacks this."""
        if scope not in self.scopes:
            raise Forbidden(f"{self.name} may not do this; it takes the scope {scope}", [scope])

    def may_serve(self, queue: str) -> bool:
        """Whether it may claim and report on runs of this pulled queue."""
        return Scope.WORK in self.scopes and (self.queues is None or queue in self.queues)

    def may_reach(self, queue: str) -> bool:
        """Whether it may see and touch jobs and runs of this queue, by its full name (`pull/NAME`, `http`, ...)."""
        if self.queues is None:
            return True
        kind, _, name = queue.partition("/")
        return kind == "pull" and name in self.queues


def principal(
    subject: str,
    name: str,
    kind: Kind,
    roles: Iterable[Role],
    *,
    scopes: Iterable[Scope] = (),
    queues: Iterable[str] | None = None,
) -> Principal:
    """Who has these roles, and these scopes beside."""
    given = tuple(sorted(set(roles)))
    all_scopes = frozenset(scopes).union(*(SCOPES[role] for role in given))
    return Principal(
        subject=subject,
        name=name,
        kind=kind,
        roles=given,
        scopes=all_scopes,
        queues=None if queues is None else frozenset(queues),
    )


RESERVED = frozenset({"local", "api-key", "endpoint", "unknown"})
"""The names of callers that have no named key."""
DOOR = "door:"
"""How the names of those begin who come through a door that is open to all."""
LOCAL = principal("local", "local", "local", [Role.ADMIN])
"""Everyone, where there is neither a key nor an issuer."""
