"""Roles that are bound to labels: what a caller with several of them may see and do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from horarium.access.roles import LOCAL, Principal, Role, Scope, principal
from horarium.access.tokens import BoundRole, TokenPolicy, joined, role_of, to_principal
from horarium.errors import Forbidden, InvalidSetting
from horarium.server.process import server_tokens_policy
from horarium.server.sources import load_settings

BILLING, OPS = {"team": "billing"}, {"team": "ops"}
ROLE_MAP: Mapping[str, Role | BoundRole] = {
    "billing-ops": BoundRole(Role.OPERATOR, BILLING),
    "ops-edit": BoundRole(Role.EDITOR, OPS),
    "all-see": Role.VIEWER,
    "admins": Role.ADMIN,
}


def person(*groups: str, scope: str = "") -> Principal:
    """Who has these groups."""
    claims = {"sub": "ann", "roles": list(groups), "scope": scope}
    return to_principal(claims, TokenPolicy(audience="here", role_map=ROLE_MAP))


def reached(caller: Principal) -> list[str]:
    things: dict[str, dict[str, str]] = {"billing": BILLING, "ops": OPS, "none": {}, "both": {**BILLING, "a": "b"}}
    return [name for name, labels in things.items() if caller.may_reach("http", labels)]


def test_one_bound_role_binds_all() -> None:
    found = person("billing-ops")
    assert (found.bound, reached(found), found.roles) == (True, ["billing", "both"], (Role.OPERATOR,))
    assert found.narrowed(Scope.RUNS_WRITE) == found
    assert not found.may_serve("a")


def test_of_two_roles_each_has_its_own_bounds() -> None:
    found = person("billing-ops", "ops-edit")
    assert reached(found) == ["billing", "ops", "both"]
    assert reached(found.narrowed(Scope.JOBS_READ)) == ["billing", "ops", "both"]
    writes = found.narrowed(Scope.JOBS_WRITE)
    assert reached(writes) == ["ops"]
    # In a request that operates, nothing may be defined along with it: that is for one of the teams alone.
    assert Scope.RUNS_DEFINE not in found.narrowed(Scope.RUNS_WRITE).scopes
    assert Scope.RUNS_DEFINE in writes.scopes


def test_a_role_that_is_not_bound_reaches_all_with_its_own_scopes() -> None:
    found = person("billing-ops", "all-see")
    # Whoever forgets to narrow it shows too little.
    assert reached(found) == ["billing", "both"]
    sees = found.narrowed(Scope.JOBS_READ)
    assert (sees.bound, sees.scopes) == (False, frozenset({Scope.JOBS_READ, Scope.RUNS_READ}))
    assert reached(found.narrowed(Scope.RUNS_WRITE)) == ["billing", "both"]
    assert not person("billing-ops", "admins").narrowed(Scope.RUNS_WRITE).bound


def test_scopes_of_a_token_are_bound_to_nothing() -> None:
    found = person("billing-ops", scope="jobs:read")
    assert not found.narrowed(Scope.JOBS_READ).bound
    assert found.narrowed(Scope.RUNS_READ).bound


def test_two_tokens_of_one_person_give_what_both_give() -> None:
    both = joined(person("billing-ops"), person("all-see"), "Ann")
    assert both.name == "Ann"
    assert reached(both.narrowed(Scope.RUNS_WRITE)) == ["billing", "both"]
    assert not both.narrowed(Scope.JOBS_READ).bound
    assert joined(person("billing-ops"), person(), "ann").narrowed(Scope.JOBS_READ).labels == (BILLING,)


def test_what_a_bound_caller_makes_has_its_labels() -> None:
    one, two = person("billing-ops"), person("billing-ops", "ops-edit")
    assert one.marked({}) == BILLING
    assert one.marked({"a": "b"}) == {"a": "b", **BILLING}
    assert two.marked(OPS) == OPS
    assert LOCAL.marked({}) == {}
    for caller, labels in ((one, OPS), (two, {}), (two, {"team": "x"})):
        with pytest.raises(Forbidden, match="bound to the labels team=billing"):
            caller.marked(labels)


def test_queues_and_labels_bind_together() -> None:
    found = principal("k", "k", "key", [Role.EDITOR], queues=["a"], labels=BILLING)
    assert found.may_reach("pull/a", BILLING)
    assert not found.may_reach("pull/b", BILLING)
    assert not found.may_reach("pull/a", OPS)


@pytest.mark.parametrize(
    "given",
    [
        {"billing-ops": {"role": "operator", "labels": {"team": "billing"}}, "admins": "admin"},
        '{"billing-ops": {"role": "operator", "labels": {"team": "billing"}}, "admins": "admin"}',
        "billing-ops=operator;team=billing,admins=admin",
    ],
)
def test_the_setting_takes_a_mapping_json_and_pairs(given: Any) -> None:
    settings = load_settings({"oidc_role_map": given})
    policy = server_tokens_policy(settings)
    assert policy.role_map == {"billing-ops": BoundRole(Role.OPERATOR, BILLING), "admins": Role.ADMIN}


@pytest.mark.parametrize(
    "given",
    [
        {"a": {"role": "admin", "labels": {"team": "x"}}},
        {"a": {"role": "worker", "labels": {"team": "x"}}},
        {"a": {"role": "operator", "labels": {}}},
        {"a": {"role": "operator", "label": {"team": "x"}}},
        {"a": {"role": "nothing"}},
        "a=operator;team",
        "a=operator;",
    ],
)
def test_a_bound_that_says_nothing_is_refused(given: Any) -> None:
    with pytest.raises(InvalidSetting, match="oidc_role_map"):
        load_settings({"oidc_role_map": given})


def test_a_text_gives_a_role() -> None:
    assert role_of("viewer") is Role.VIEWER
    assert role_of("viewer;a=b=c;d=e") == BoundRole(Role.VIEWER, {"a": "b=c", "d": "e"})
