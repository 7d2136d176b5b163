"""Settings: where they come from, which source wins, and how a mistake is named."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from horarium.errors import InvalidSetting
from horarium.server.checks import KEY_CHARS_MIN, check_settings, is_loopback
from horarium.server.config import (
    ROLES,
    Settings,
    mask_url,
    table,
)
from horarium.server.process import server_hosts
from horarium.server.sources import load_settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "settings.md"
TABLES = runpy.run_path(str(ROOT / "tools" / "settings_tables.py"))


def refusal(flags: dict[str, object], env: dict[str, str] | None = None, file: Path | None = None) -> str:
    with pytest.raises(InvalidSetting) as caught:
        load_settings(flags, env, file)
    return caught.value.message


def test_without_any_source_the_defaults_hold() -> None:
    settings = load_settings()
    assert settings == Settings()
    assert settings.store == "sqlite:///horarium.db"
    assert (settings.host, settings.port, settings.roles) == ("127.0.0.1", 8080, ROLES)


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "horarium.yaml"
    file.write_text("port: 1\nhost: localhost\ngrace_seconds: 1\n")
    settings = load_settings({"port": "3"}, {"HORARIUM_PORT": "2", "HORARIUM_HOST": "::1"}, file)
    assert (settings.port, settings.host, settings.grace_seconds) == (3, "::1", 1.0)


def test_a_flag_that_is_none_or_empty_is_not_given() -> None:
    assert load_settings({"port": None, "api_keys": ()}, {"HORARIUM_PORT": "7", "HORARIUM_API_KEYS": "k"}) == Settings(
        port=7, api_keys=("k",)
    )


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("port", "8081", 8081),
        ("grace_seconds", "2.5", 2.5),
        ("roles", "api, planner,api", ("api", "planner")),
        ("api_keys", "one,two", ("one", "two")),
        ("allow_private_targets", "true", True),
        ("allow_private_targets", "0", False),
        ("log_format", "json", "json"),
        ("uvloop", "off", "off"),
        ("store", "redis://:p@h:1/0", "redis://:p@h:1/0"),
        ("node_name", "node-1", "node-1"),
    ],
)
def test_text_becomes_the_type_of_its_setting(name: str, text: str, value: object) -> None:
    assert getattr(load_settings({}, {"HORARIUM_" + name.upper(): text}), name) == value
    assert getattr(load_settings({name: text}), name) == value


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("port", "x", "a whole number from 0 to 65535"),
        ("port", "65536", "a whole number from 0 to 65535"),
        ("port", "-1", "a whole number from 0 to 65535"),
        ("port", "80.5", "a whole number from 0 to 65535"),
        ("grace_seconds", "nan", "a number from 0 to 86400"),
        ("grace_seconds", "inf", "a number from 0 to 86400"),
        ("log_format", "xml", "one of text, json"),
        ("log_format", "\udcff", "one of text, json"),
        ("roles", "api,plan", "one or more of api, planner"),
        ("roles", ",", "one or more of"),
        ("allow_private_targets", "yes", "true or false"),
        ("store", "horarium.db", "a store URL such as"),
        ("namespace", "a/b", "letters, digits"),
        ("http_concurrency", "0", "a whole number from 1 to 10000"),
    ],
)
def test_a_wrong_value_names_setting_source_given_and_expected(name: str, text: str, expected: str) -> None:
    message = refusal({}, {"HORARIUM_" + name.upper(): text})
    assert message.startswith(f"{name}: {text!r} given in HORARIUM_{name.upper()}; expected ")
    assert expected in message


def test_both_ends_of_a_range_are_in_it() -> None:
    assert load_settings({"port": "0"}).port == 0
    assert load_settings({"port": "65535"}).port == 65_535


def test_a_wrong_value_in_the_file_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "horarium.yaml"
    file.write_text("# mine\nhost: localhost\nport: high\n")
    assert refusal({}, {}, file).startswith(f"port: 'high' given in {file}:3;")


MANY_ALIASES = "".join(f"a{n}: &a{n} [{', '.join(10 * [f'*a{n - 1}' if n else 'x'])}]\n" for n in range(8))
"""A hundred million values in half a kilobyte."""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot: 1\n", "there is no setting 'prot' (in {file}:1); did you mean port?"),
        ("plan-ahead-seconds: 1\n", "did you mean plan_ahead_seconds?"),
        ("port: 1\nport: 2\n", "{file}:2: not YAML 1.2: found duplicate key"),
        ("store: *x\n", "{file}:1: not YAML 1.2"),
        ("- port\n", "expected one mapping of settings"),
        ("a: 1\n---\nb: 1\n", "expected one mapping of settings"),
        ("port: {\n", "not YAML 1.2"),
        ("store: &a [*a]\n", "{file}: its aliases refer to themselves"),
        (MANY_ALIASES, "{file}: its aliases refer to themselves, or make more than 10,000,000 values"),
        ("api_keys: [1]\n", "api_keys: ******** given in"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "horarium.yaml"
    file.write_text(text)
    assert words.format(file=file) in refusal({}, {}, file)


def test_the_file_is_yaml_1_2_where_on_is_a_word(tmp_path: Path) -> None:
    file = tmp_path / "horarium.yaml"
    file.write_text("uvloop: on\nallow_private_targets: true\nroles: [api, pruner]\napi_keys:\n  - secret\n")
    settings = load_settings({}, {}, file)
    assert settings.uvloop == "on"
    assert settings.allow_private_targets
    assert (settings.roles, settings.api_keys) == (("api", "pruner"), ("secret",))


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "horarium.yaml"
    file.write_text("# nothing\n")
    assert load_settings({}, {}, file) == Settings()


def test_a_file_that_is_missing_or_binary_or_long_is_refused(tmp_path: Path) -> None:
    assert "can't be read: No such file" in refusal({}, {}, tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "it is not UTF-8" in refusal({}, {}, tmp_path / "binary.yaml")
    (tmp_path / "long.yaml").write_bytes(b"#" * (1024 * 1024 + 1))
    assert "longer than 1,048,576 bytes" in refusal({}, {}, tmp_path / "long.yaml")


def test_a_variable_that_holds_a_secret_is_no_setting() -> None:
    own = {"HORARIUM_SECRETS_ENV_PREFIX": "HORARIUM_OURS_", "HORARIUM_OURS_TOKEN": "x", "HORARIUM_SECRET_TOKEN": "y"}
    assert load_settings(env=own).secrets_env_prefix == "HORARIUM_OURS_"


def test_an_unknown_variable_names_the_nearest() -> None:
    message = refusal({}, {"HORARIUM_PROT": "1"})
    assert message == "there is no setting 'HORARIUM_PROT' (in the environment); did you mean HORARIUM_PORT?"


def test_variables_of_the_client_of_tests_and_of_others_are_left_alone() -> None:
    others = {
        "HORARIUM_URL": "x",
        "HORARIUM_API_KEY": "x",
        "HORARIUM_CONFIG": "x",
        "HORARIUM_TEST_PG": "x",
        "PORT": "x",
    }
    assert load_settings({}, others) == Settings()


def test_an_empty_variable_is_refused_and_says_what_to_do() -> None:
    assert refusal({}, {"HORARIUM_API_KEYS": ""}).endswith("or unset it")


def test_secrets_are_never_shown() -> None:
    settings = Settings(
        store="postgresql://me:hunter2@db/x?password=hunter2",
        api_keys=("hunter2",),
        signing_secret="whsec_hunter2",
    )
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings)
    assert "hunter2" not in refusal({"api_keys": ("hunter2 hunter2",)})
    assert "hunter2" not in refusal({"store": "Postgres://me:hunter2@db"})


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("redis://:p@h", "redis://:********@h"),
        ("postgresql://u:p@h/d", "postgresql://u:********@h/d"),
        ("postgresql://u:p/w@rd@h/d", "postgresql://u:********@h/d"),
        ("postgresql://h/d?user=u&password=p&x=1", "postgresql://h/d?user=u&password=********&x=1"),
    ],
)
def test_a_password_in_a_url_is_masked(url: str, masked: str) -> None:
    assert mask_url(url) == masked


BEYOND = ["0.0.0.0", "::", "10.1.2.3", "horarium.example.com"]


@pytest.mark.parametrize("host", BEYOND)
def test_a_host_beyond_loopback_needs_a_key(host: str) -> None:
    with pytest.raises(InvalidSetting, match="no API key is set; add --api-key"):
        check_settings(Settings(host=host))
    check_settings(Settings(host=host, api_keys=("k" * KEY_CHARS_MIN,)))
    check_settings(Settings(host=host, roles=("planner",)))


@pytest.mark.parametrize("host", BEYOND)
def test_a_host_beyond_loopback_needs_a_long_key(host: str) -> None:
    long, short = "k" * KEY_CHARS_MIN, "k" * (KEY_CHARS_MIN - 1)
    with pytest.raises(InvalidSetting, match="fewer than 16 characters") as refused:
        check_settings(Settings(host=host, api_keys=(long, short)))
    assert short not in str(refused.value)
    check_settings(Settings(api_keys=("k",)))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST"])
def test_loopback_is_open_to_this_machine_alone(host: str) -> None:
    assert is_loopback(host)
    check_settings(Settings(host=host))


def test_every_setting_says_what_it_is() -> None:
    for setting in table():
        assert setting.help
        assert setting.expected
        assert setting.env == "HORARIUM_" + setting.name.upper()
        assert setting.flag.startswith("--") or setting.of_doors


def test_the_docs_hold_the_table_as_it_is() -> None:
    assert TABLES["settings_table"]() in DOCS.read_text()
    assert TABLES["settings_table"](of_doors=True) in DOCS.read_text().partition("\n## Doors\n")[2]
    assert TABLES["files_table"]() in DOCS.read_text()


def test_buses_have_names_and_a_url_alone_is_the_default() -> None:
    settings = load_settings(env={"HORARIUM_BUS_URLS": "amqp://a/, orders=nats://b:4222"})
    assert settings.buses == {"default": "amqp://a/", "orders": "nats://b:4222"}
    assert load_settings({"bus_urls": ("redis://h/?x=y",)}).buses == {"default": "redis://h/?x=y"}
    assert load_settings().buses == {}


@pytest.mark.parametrize("urls", [("amqp://a", "nats://b"), ("x=amqp://a", "x=nats://b")])
def test_two_buses_of_one_name_are_refused(urls: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSetting, match="two buses named"):
        check_settings(load_settings({"bus_urls": urls}))


def test_the_password_of_a_bus_is_masked() -> None:
    settings = load_settings({"bus_urls": ("x=amqp://me:secret-9@h/",)})
    assert "secret-9" not in repr(settings)
    with pytest.raises(InvalidSetting) as refused:
        load_settings({"bus_urls": ("me:secret-9@h",)})
    assert "bus_urls" in str(refused.value)


# ---- secrets from files


SECRETS = {
    "store": "postgresql://me:hunter2@db/x",
    "api_keys": "first-key-1234\nsecond-key-5678\n",
    "signing_secret": "whsec_aHVudGVyMg==\n",
    "oidc_client_secret": "hunter2-of-the-issuer\n",
    "bus_urls": "amqp://me:hunter2@rabbit/\norders=nats://nats:4222",
    "smtp_url": "smtps://me:hunter2@mail/",
}


def test_every_secret_can_be_read_from_a_file() -> None:
    assert {setting.name for setting in table() if setting.secret} == set(SECRETS)
    assert {setting.name for setting in table() if setting.file_name} == set(SECRETS)


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_in_a_file_is_the_same_from_every_source(name: str, tmp_path: Path) -> None:
    secret, file = tmp_path / "secret", tmp_path / "horarium.yaml"
    secret.write_text(SECRETS[name])
    file.write_text(f"{name}_file: {secret}\n")
    wanted = load_settings({name: ",".join(SECRETS[name].split())})
    assert load_settings({f"{name}_file": str(secret)}) == wanted
    assert load_settings({}, {f"HORARIUM_{name.upper()}_FILE": str(secret)}) == wanted
    assert load_settings({}, {}, file) == wanted


def test_a_later_source_wins_over_a_file_that_an_earlier_one_names(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key-of-the-file")
    env = {"HORARIUM_API_KEYS_FILE": str(secret)}
    assert load_settings({"api_keys": ("key-of-the-flag",)}, env).api_keys == ("key-of-the-flag",)
    assert load_settings({"api_keys_file": str(secret)}, {"HORARIUM_API_KEYS": "other"}).api_keys == (
        "key-of-the-file",
    )


def test_a_secret_is_given_once(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    message = refusal({}, {"HORARIUM_API_KEYS_FILE": str(secret), "HORARIUM_API_KEYS": "x"})
    assert message == "api_keys and api_keys_file are both given in one place; give one of them"


@pytest.mark.parametrize(
    ("content", "words"),
    [(b" \n", "is empty"), (b"\xff", "it is not UTF-8"), (b"k" * 65_537, "is longer than"), (None, "No such file")],
)
def test_a_file_without_a_secret_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_bytes(content)
    message = refusal({"api_keys_file": str(secret)})
    assert message.startswith("api_keys_file: ")
    assert words in message


def test_a_wrong_secret_in_a_file_is_not_shown(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2\xe4")
    message = refusal({"api_keys_file": str(secret)})
    assert "hunter2" not in message
    assert f"given in {secret} (named in --api-key-file)" in message


def test_no_other_setting_is_read_from_a_file() -> None:
    assert "there is no setting 'port_file'" in refusal({"port_file": "x"})


def test_a_certificate_and_its_key_belong_together() -> None:
    for given, missing in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        with pytest.raises(InvalidSetting, match=f"{missing}: is missing"):
            check_settings(load_settings({given: "x.pem"}))
    check_settings(load_settings({"tls_cert": "x.pem", "tls_key": "y.pem"}))


@pytest.mark.parametrize("host", ["http://x", "a b", "x/y", "*"])
def test_an_allowed_host_is_a_name(host: str) -> None:
    assert "expected host names such as" in refusal({"allowed_hosts": (host,)})


def test_a_server_answers_to_the_names_in_its_settings() -> None:
    settings = Settings(host="jobs.internal", public_url="https://jobs.example.com/x", allowed_hosts=("*.lan", "a"))
    hosts = server_hosts(settings)
    for host in ("jobs.internal:8080", "jobs.example.com", "x.lan", "a", "10.0.0.1", "localhost"):
        assert hosts.allow(host)
    assert not hosts.allow("evil.example")
    assert not server_hosts(Settings()).allow("10.0.0.1")


@pytest.mark.parametrize("proxy", ["999.1.1.1", "10.0.0.0/33", ":::"])
def test_a_trusted_proxy_is_an_address_or_a_network(proxy: str) -> None:
    with pytest.raises(InvalidSetting, match="trusted_proxies"):
        check_settings(load_settings({"trusted_proxies": (proxy,)}))
    assert "expected addresses or networks" in refusal({"trusted_proxies": ("proxy.example",)})
