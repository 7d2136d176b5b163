"""Secrets of a target: shown as asterisks, kept only where they already go."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from horarium.errors import InvalidJob
from horarium.model import CommandTarget, HttpTarget
from horarium.wire.masking import SECRET_SHOWN, is_secret_header, keep_secrets, shown_target, shown_url

STORED = HttpTarget(
    url="https://api.example/hook",
    headers={"Authorization": "Bearer stored", "X-Plain": "seen"},
    signing_secret="whsec_c3RvcmVk",
)
SHOWN = shown_target(STORED)
COMMAND = CommandTarget(command=("pg_dump", "db"), env={"PGPASSWORD": "hunter2", "PGHOST": "db1"})


def moved(target: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(target, **changes)


@pytest.mark.parametrize("url", ["https://api.example/other?x=1", "https://API.example:443/", "https://api.example"])
def test_a_mask_keeps_the_secret_while_scheme_host_and_port_stay(url: str) -> None:
    assert keep_secrets(moved(SHOWN, url=url), STORED) == moved(STORED, url=url)


@pytest.mark.parametrize(
    "url",
    ["http://api.example/hook", "https://api.example:8443/hook", "https://evil.example/hook",
     "https://api.example.evil.example/", "https://api.example@evil.example/", "https://evil.example/https://api.example/"],
)  # fmt: skip
@pytest.mark.parametrize("masked", ["headers", "signing_secret"])
def test_a_mask_does_not_send_the_secret_elsewhere(url: str, masked: str) -> None:
    other: dict[str, Any] = {"signing_secret": None} if masked == "headers" else {"headers": {}}
    with pytest.raises(InvalidJob, match="give it again"):
        keep_secrets(moved(SHOWN, url=url, **other), STORED)
    with pytest.raises(InvalidJob, match="give it again"):
        keep_secrets(moved(SHOWN, cancel_url=url, **other), STORED)


def test_secrets_that_are_given_again_may_go_anywhere() -> None:
    given = HttpTarget(url="https://new.example", headers={"Authorization": "Bearer new"}, signing_secret="whsec_bmV3")
    assert keep_secrets(given, STORED) == given


def test_a_cancel_goes_where_the_run_goes_or_where_it_went() -> None:
    stored = moved(STORED, cancel_url="https://cancel.example/x")
    assert keep_secrets(moved(shown_target(stored), cancel_url="https://cancel.example/y"), stored)
    assert keep_secrets(moved(shown_target(stored), cancel_url="https://api.example/y"), stored)


@pytest.mark.parametrize(
    "name", ["token", "access_token", "api_key", "apikey", "sig", "key", "password", "client_secret"]
)
def test_a_parameter_named_like_a_secret_is_not_shown(name: str) -> None:
    stored = HttpTarget(url=f"https://h/?a=1&{name}=hunter2&b=2")
    shown = shown_target(stored)
    assert isinstance(shown, HttpTarget)
    assert shown.url == f"https://h/?a=1&{name}={SECRET_SHOWN}&b=2"
    assert keep_secrets(shown, stored) == stored
    for url in (
        f"https://evil/?a=1&{name}={SECRET_SHOWN}&b=2",
        f"https://h/?{name}={SECRET_SHOWN}",
        shown.url + "&token=x",
    ):
        with pytest.raises(InvalidJob, match="is masked"):
            keep_secrets(moved(shown, url=url), stored)
    with pytest.raises(InvalidJob, match="is masked"):
        keep_secrets(shown, None)


@pytest.mark.parametrize(
    "url", ["https://h/", "https://h/?keyboard=x&monkey=y&design=1", f"https://h/?x={SECRET_SHOWN}", "https://h/?key"]
)
def test_other_parameters_are_shown_and_kept(url: str) -> None:
    assert shown_url(url) == url
    assert keep_secrets(HttpTarget(url=url), None) == HttpTarget(url=url)


def test_the_secrets_among_a_commands_variables_are_not_shown() -> None:
    shown = shown_target(COMMAND)
    assert isinstance(shown, CommandTarget)
    assert shown.env == {"PGPASSWORD": SECRET_SHOWN, "PGHOST": "db1"}
    assert keep_secrets(shown, COMMAND) == COMMAND


@pytest.mark.parametrize(
    "name",
    [
        "PGPASSWORD",
        "API_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "MYSQL_PWD",
        "GITHUB_TOKEN",
        "DB_PASS",
        "GITHUB_PAT",
        "X-Vault-Key",
        "JWT",
        "PASSPHRASE",
        "Authorization",
        "Private-Token",
        "X-Auth",
        "Cookie",
        "apiKey",
        "sig",
    ],
)
def test_names_of_secrets(name: str) -> None:
    shown = shown_target(CommandTarget(command=("x",), env={name: "hunter2"}))
    assert isinstance(shown, CommandTarget)
    assert shown.env[name] == SECRET_SHOWN
    assert is_secret_header(name)
    assert shown_url(f"https://h/?{name}=hunter2") == f"https://h/?{name}={SECRET_SHOWN}"


@pytest.mark.parametrize(
    "name", ["PATH", "MAILTO", "HOME", "PGHOST", "LANG", "SHELL", "CRON_TZ", "PASSAGE", "GIT_AUTHOR_NAME"]
)
def test_names_of_no_secrets(name: str) -> None:
    target = CommandTarget(command=("x",), env={name: "plain"})
    assert shown_target(target) == target


def test_the_password_of_a_url_is_not_shown() -> None:
    stored = HttpTarget(url="https://me:hunter2@h.example/x")
    shown = shown_target(stored)
    assert isinstance(shown, HttpTarget)
    assert shown.url == f"https://me:{SECRET_SHOWN}@h.example/x"
    assert keep_secrets(shown, stored) == stored
    with pytest.raises(InvalidJob, match="is masked"):
        keep_secrets(moved(shown, url=f"https://me:{SECRET_SHOWN}@evil.example/x"), stored)


def test_a_password_in_a_url_among_the_variables_is_not_shown() -> None:
    stored = moved(COMMAND, env={"DATABASE_URL": "postgresql://me:hunter2@db/x"})
    shown = shown_target(stored)
    assert isinstance(shown, CommandTarget)
    assert shown.env["DATABASE_URL"] == f"postgresql://me:{SECRET_SHOWN}@db/x"
    assert keep_secrets(shown, stored) == stored


@pytest.mark.parametrize(
    "changes",
    [
        {"queue": "other"},
        {"command": ("curl", "evil")},
        {"env": {"PGPASSWORD": SECRET_SHOWN, "PGHOST": "evil"}},
        {"env": {"PGPASSWORD": SECRET_SHOWN, "PGHOST": "db1", "PATH": "/tmp"}},
        {"env": {"PGPASSWORD": SECRET_SHOWN, "PGHOST": "db1", "TOKEN": SECRET_SHOWN}},
        {"stdin": "x"},
        {"cwd": "/tmp"},
        {"user": "evil"},
    ],
    ids=["queue", "command", "another variable", "one more", "nothing stored", "stdin", "cwd", "user"],
)
def test_a_masked_variable_stays_with_its_command(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match="is masked"):
        keep_secrets(moved(shown_target(COMMAND), **changes), COMMAND)


def test_a_masked_variable_of_a_new_job_is_refused() -> None:
    with pytest.raises(InvalidJob, match="is masked"):
        keep_secrets(shown_target(COMMAND), None)


def test_an_export_without_secrets_goes_into_any_server() -> None:
    plain = CommandTarget(command=("x",), env={"MAILTO": "me", "PATH": "/bin"})
    assert keep_secrets(shown_target(plain), None) == plain


def test_a_url_that_was_changed_beside_its_mask_is_told_so() -> None:
    stored = HttpTarget(url="https://example.com/x?token=s3cret&page=1")
    shown = HttpTarget(url="https://example.com/x?token=********&page=2")
    with pytest.raises(InvalidJob, match="a secret in it is masked, and another part of it was changed"):
        keep_secrets(shown, stored)
    with pytest.raises(InvalidJob, match="no secret is stored for it"):
        keep_secrets(shown, HttpTarget(url="https://example.com/x?page=1"))
