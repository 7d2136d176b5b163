"""Roles are unions of scopes; queues bind a key with all that it may do."""

from __future__ import annotations

from itertools import combinations
from typing import get_type_hints

import msgspec
import pytest

from horarium.access.roles import LOCAL, SCOPES, Role, Scope, principal
from horarium.cli.fields import ROLES
from horarium.server.config import Settings

EXPECTED = {
    Role.VIEWER: {"jobs:read", "runs:read"},
    Role.OPERATOR: {"jobs:read", "runs:read", "runs:write"},
    Role.PRODUCER: {"runs:read", "runs:define"},
    Role.EDITOR: {"jobs:read", "runs:read", "runs:write", "runs:define", "jobs:write"},
    Role.WORKER: {"work"},
    Role.ADMIN: {"jobs:read", "jobs:write", "runs:read", "runs:write", "runs:define", "work", "admin"},
}


@pytest.mark.parametrize("role", Role)
def test_each_role_has_its_scopes(role: Role) -> None:
    assert principal("x", "x", "key", [role]).scopes == EXPECTED[role]


def test_each_role_can_be_given_to_a_key_and_by_the_map_of_an_issuer() -> None:
    assert tuple(Role) == ROLES
    kind = get_type_hints(Settings, include_extras=True)["oidc_role_map"]
    assert msgspec.convert([f"group={role}" for role in Role], kind) == tuple(f"group={role}" for role in Role)


def test_several_roles_are_their_union() -> None:
    for one, other in combinations(Role, 2):
        assert principal("x", "x", "key", [one, other]).scopes == SCOPES[one] | SCOPES[other]


def test_scopes_of_a_token_come_on_top() -> None:
    assert principal("x", "x", "oidc", [Role.VIEWER], scopes=[Scope.WORK]).scopes == EXPECTED[Role.VIEWER] | {"work"}


def test_queues_bind() -> None:
    bound = principal("x", "x", "key", [Role.WORKER, Role.EDITOR], queues=["a"])
    assert (bound.may_serve("a"), bound.may_serve("b")) == (True, False)
    assert not principal("x", "x", "key", [Role.WORKER, Role.ADMIN], queues=["a"]).may_serve("b")
    assert principal("x", "x", "key", [Role.WORKER]).may_serve("b")
    assert not principal("x", "x", "key", [Role.EDITOR]).may_serve("a")


def test_a_bound_caller_reaches_its_pulled_queues_and_nothing_else() -> None:
    bound = principal("x", "x", "key", [Role.EDITOR], queues=["a"])
    assert [
        queue for queue in ("pull/a", "pull/b", "a", "handler/a", "bus/a", "http") if bound.may_reach(queue, {})
    ] == ["pull/a"]
    assert all(LOCAL.may_reach(queue, {}) for queue in ("pull/a", "handler/a", "http"))


def test_what_is_missing_is_named() -> None:
    assert principal("x", "x", "key", [Role.VIEWER]).missing(Scope.ADMIN) == [Scope.ADMIN]
    assert LOCAL.missing(Scope.ADMIN) == []
