"""Scopes, roles, and who asks: data and pure functions.

A role is a set of scopes; several roles are their union. A caller may be bound to queues, and to labels: with all that
it may do it sees and touches the jobs and runs that are in one of these queues, and that have these labels, and no
others. No admin is bound. A person may have several roles that are bound to different labels: `narrowed` says what is
left of them for one scope.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

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


Labels = Mapping[str, str]
NO_LABELS: Labels = MappingProxyType({})


class Grant(Struct, frozen=True):
    """Scopes, and the labels to which they are bound (None: to none)."""

    scopes: frozenset[Scope]
    labels: dict[str, str] | None = None


class Principal(Struct, frozen=True, kw_only=True):
    """Who asks. `subject` is what it is called for good, `name` what people call it. `queues`: the pulled queues to
    which it is bound, `labels`: the sets of labels of which a thing must have one (None: it is not bound). `grants`:
    of roles with different bounds, each of them. `calls_per_hour`, `runs_per_day`: its budgets (`budgets`)."""

    subject: str
    name: str
    kind: Kind
    roles: tuple[Role, ...] = ()
    scopes: frozenset[Scope] = frozenset()
    queues: frozenset[str] | None = None
    labels: tuple[dict[str, str], ...] | None = None
    grants: tuple[Grant, ...] = ()
    calls_per_hour: int | None = None
    runs_per_day: int | None = None

    @property
    def bound(self) -> bool:
        """Whether it sees only a part of what there is."""
        return self.queues is not None or self.labels is not None

    @property
    def bounds(self) -> str:
        """To what it is bound, as far as messages say it."""
        return "to queues" if self.labels is None else "to labels"

    def missing(self, needed: Scope) -> list[Scope]:
        """What it lacks for this."""
        return [] if needed in self.scopes else [needed]

    def require(self, scope: Scope) -> None:
        """Raises Forbidden if it lacks this."""
        if scope not in self.scopes:
            raise Forbidden(f"{self.name} may not do this; it takes the scope {scope}", [scope])

    def may_serve(self, queue: str) -> bool:
        """Whether it may claim and report on runs of this pulled queue."""
        return Scope.WORK in self.scopes and (not self.bound or queue in (self.queues or ()))

    def may_reach(self, queue: str, labels: Labels) -> bool:
        """Whether it may see and touch jobs and runs of this queue, by its full name (`pull/NAME`, `http`, ...), that
        have these labels."""
        if self.queues is not None:
            kind, _, name = queue.partition("/")
            if kind != "pull" or name not in self.queues:
                return False
        return self.may_label(labels)

    def may_label(self, labels: Labels) -> bool:
        """Whether it may see and touch what has these labels."""
        return self.labels is None or any(one.items() <= labels.items() for one in self.labels)

    def marked(self, labels: Labels) -> Labels:
        """The labels of what it makes: those that are given, and those to which it is bound. Raises Forbidden where
        they are at odds, or it is not said which of several it is to be."""
        if self.may_label(labels):
            return labels
        fitting = [
            one for one in self.labels or () if all(labels.get(name, text) == text for name, text in one.items())
        ]
        if len(fitting) != 1:
            raise Forbidden(f"{self.name} is bound to the labels {say_labels(self.labels or ())}; give these")
        return {**labels, **fitting[0]}

    def narrowed(self, scope: Scope | None) -> Principal:
        """Who it is in a request that takes this scope: bound as the roles are that have it. Of its other scopes those
        are left that it has for all that it may see then."""
        if not self.grants or scope is None:
            return self
        labels = _bounds(self.grants, scope)
        scopes = frozenset(each for each in self.scopes if _covers(_bounds(self.grants, each), labels))
        return replace(self, labels=labels, scopes=scopes, grants=())


def principal(
    subject: str,
    name: str,
    kind: Kind,
    roles: Iterable[Role],
    *,
    scopes: Iterable[Scope] = (),
    queues: Iterable[str] | None = None,
    labels: Labels | None = None,
) -> Principal:
    """Who has these roles, and these scopes beside, bound as is said."""
    given = tuple(sorted(set(roles)))
    all_scopes = frozenset(scopes).union(*(SCOPES[role] for role in given))
    return Principal(
        subject=subject,
        name=name,
        kind=kind,
        roles=given,
        scopes=all_scopes,
        queues=None if queues is None else frozenset(queues),
        labels=None if labels is None else (dict(labels),),
    )


def with_grants(found: Principal, grants: Sequence[Grant]) -> Principal:
    """The same with all of these, beside its own scopes, which are bound to nothing."""
    everything = [*([Grant(found.scopes)] if found.scopes else []), *grants]
    if all(grant.labels is None for grant in everything):
        return replace(found, scopes=frozenset[Scope]().union(*(grant.scopes for grant in everything)))
    distinct = tuple({say_labels([one]): one for grant in grants if (one := grant.labels) is not None}.values())
    scopes = frozenset[Scope]().union(*(grant.scopes for grant in everything))
    mixed = len(distinct) > 1 or any(grant.labels is None for grant in everything)
    # Until it is narrowed, it is bound to all of its labels: nothing that forgets to do so shows too much.
    return replace(found, scopes=scopes, labels=distinct, grants=tuple(everything) if mixed else ())


def _bounds(grants: Sequence[Grant], scope: Scope) -> tuple[dict[str, str], ...] | None:
    """The sets of labels of which a thing must have one (None: any thing will do)."""
    found = [grant.labels for grant in grants if scope in grant.scopes]
    return None if None in found else tuple(one for one in found if one is not None)


def _covers(wide: tuple[dict[str, str], ...] | None, narrow: tuple[dict[str, str], ...] | None) -> bool:
    """Whether all that is within the second is within the first."""
    if wide is None or narrow is None:
        return wide is None
    return all(any(one.items() <= each.items() for one in wide) for each in narrow)


def say_labels(labels: Sequence[Labels]) -> str:
    """Sets of labels in words."""
    return " or ".join(", ".join(f"{name}={text}" for name, text in sorted(each.items())) for each in labels)


RESERVED = frozenset({"local", "api-key", "endpoint", "unknown"})
"""The names of callers that have no named key."""
DOOR = "door:"
"""How the names of those begin who come through a door that is open to all."""
LOCAL = principal("local", "local", "local", [Role.ADMIN])
"""Everyone, where there is neither a key nor an issuer."""
