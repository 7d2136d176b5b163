"""The settings of a server: one table, four sources, checked once at the start.

`Settings` is the table: each field carries its type, default, bounds and help, and its names in the environment and on
the command line follow from it. Sources, later ones win: defaults, a YAML 1.2 file, `HORARIUM_*` variables, flags. A
name that is not in the table is an error, never ignored: a setting that was misspelt must not pass for set. Secrets and
the store's password never appear in a `repr` or in a message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from horarium.documents import key_lines, read_yaml
from horarium.errors import InvalidSetting

ENV_PREFIX = "HORARIUM_"
ENV_OF_OTHERS = ("HORARIUM_URL", "HORARIUM_API_KEY", "HORARIUM_CONFIG")
"""Variables with our prefix that are no settings of a server: those of the client, and the file's name."""
ENV_OF_COMMANDS = (
    "HORARIUM_RUN", "HORARIUM_JOB", "HORARIUM_QUEUE", "HORARIUM_ATTEMPT", "HORARIUM_FIRE_AT",
    "HORARIUM_IDEMPOTENCY_KEY",
)  # fmt: skip
"""What a command is told of its run; it may call `horarium` itself."""
NO_SETTINGS = frozenset({*ENV_OF_OTHERS, *ENV_OF_COMMANDS})
ENV_PREFIX_OF_TESTS = "HORARIUM_TEST_"
FILE_BYTES_MAX = 1024 * 1024
MASK = "********"

Role = Literal["api", "planner", "dispatcher", "rescuer", "pruner"]
ROLES: tuple[Role, ...] = get_args(Role)
Text = Annotated[str, Meta(min_length=1, max_length=2_048)]
Key = Annotated[str, Meta(min_length=1, max_length=1_024, pattern=r"^[\x21-\x7e]+$")]

BusUrl = Annotated[str, Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@-]*=)?[a-z][a-z0-9+]*://", max_length=2_048)]


class Settings(Struct, frozen=True, kw_only=True):
    """Every setting of a server. Durations are in seconds."""

    store: Annotated[
        Annotated[str, Meta(pattern=r"^[a-z][a-z0-9+]*://", max_length=2_048)],
        Meta(
            description="URL of the store: memory://, sqlite:///path.db, postgresql://, cockroachdb://, redis:// "
            "or mongodb://.",
            extra={"secret": "password", "expected": "a store URL such as sqlite:///horarium.db"},
        ),
    ] = "sqlite:///horarium.db"
    namespace: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")],
        Meta(
            description="Namespace within the store; namespaces do not see each other.",
            extra={"expected": "1 to 63 letters, digits, - or _"},
        ),
    ] = "default"
    host: Annotated[
        Text, Meta(description="Address on which the API listens. Beyond loopback it needs an API key.")
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="Port on which the API listens; 0 takes any free one.")] = (
        8080
    )
    roles: Annotated[Annotated[tuple[Role, ...], Meta(min_length=1)], Meta(description="What this process does.")] = (
        ROLES
    )
    node_name: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}$")] | None,
        Meta(
            description="Name of this node, unique among the nodes of a store; left out: host and process id.",
            extra={"expected": "1 to 200 letters, digits or . _ : @ -"},
        ),
    ] = None
    log_format: Annotated[Literal["text", "json"], Meta(description="How log lines look.")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least severe log lines that are written.")
    ] = "info"
    api_keys: Annotated[
        tuple[Key, ...],
        Meta(
            description="Keys that open the API, each sent as `Authorization: Bearer KEY`; none: it is open.",
            extra={
                "secret": "all",
                "flag": "--api-key",
                "expected": "keys of visible ASCII characters, separated by commas",
            },
        ),
    ] = ()
    signing_secret: Annotated[
        Text | None,
        Meta(
            description="Secret that signs requests to HTTP targets (`whsec_...`); a job's own wins.",
            extra={"secret": "all", "expected": "whsec_ followed by base64"},
        ),
    ] = None
    allow_private_targets: Annotated[bool, Meta(description="Let HTTP targets be private or loopback addresses.")] = (
        False
    )
    public_url: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^\s]+$", max_length=2_048)] | None,
        Meta(
            description="Base of the URLs to which endpoints report; left out: http://HOST:PORT.",
            extra={"expected": "an http:// or https:// URL"},
        ),
    ] = None
    plan_ahead_seconds: Annotated[
        float, Meta(ge=0, le=86_400, description="How far ahead fire times become pending runs.")
    ] = 1.0
    execution_window_seconds: Annotated[
        float, Meta(ge=0, le=60, description="How long before its instant a run may be claimed and held ready.")
    ] = 0.0
    catch_up_per_second: Annotated[
        int, Meta(ge=1, le=100_000, description="How many missed fire times become due each second after downtime.")
    ] = 100
    http_concurrency: Annotated[
        int, Meta(ge=1, le=10_000, description="How many HTTP targets are called at one time.")
    ] = 100
    handler_concurrency: Annotated[int, Meta(ge=1, le=10_000, description="How many handlers run at one time.")] = 100
    grace_seconds: Annotated[float, Meta(ge=0, le=86_400, description="How long a stop waits for what is running.")] = (
        30.0
    )
    bus_urls: Annotated[
        tuple[BusUrl, ...],
        Meta(
            description="Message buses to which jobs may be sent: amqp://, amqps://, nats:// or redis://, each with "
            "the name that jobs use and an equals sign before it; a URL alone is the bus `default`.",
            extra={
                "secret": "password",
                "flag": "--bus-url",
                "expected": "URLs such as amqp://rabbit/ or orders=nats://nats:4222, separated by commas",
            },
        ),
    ] = ()
    uvloop: Annotated[Literal["auto", "on", "off"], Meta(description="Use uvloop; auto: where it is installed.")] = (
        "auto"
    )

    def __repr__(self) -> str:
        shown = ", ".join(f"{s.name}={s.shown(getattr(self, s.name))!r}" for s in table())
        return f"Settings({shown})"

    @property
    def buses(self) -> dict[str, str]:
        """Name and URL of each bus. Raises InvalidSetting for a name that is given twice."""
        buses: dict[str, str] = {}
        for given in self.bus_urls:
            head, mark, tail = given.partition("=")
            name, url = (head, tail) if mark and "://" not in head else ("default", given)
            if name in buses:
                message = f"bus_urls: there are two buses named {name!r}; give each a name, as in NAME=URL"
                raise InvalidSetting(message, field="bus_urls")
            buses[name] = url
        return buses

    def check(self) -> None:
        """Refuse what is right in itself but wrong together. Raises InvalidSetting."""
        _ = self.buses
        if "api" in self.roles and not self.api_keys and not is_loopback(self.host):
            raise InvalidSetting(
                f"host: {self.host!r} lets other machines in, but no API key is set; add --api-key KEY "
                "(or HORARIUM_API_KEYS), or listen on 127.0.0.1",
                field="host",
            )


class Setting(Struct, frozen=True):
    """One line of the table."""

    name: str
    type: Any
    default: Any
    env: str
    flag: str
    help: str
    expected: str
    secret: Literal["", "all", "password"] = ""

    @property
    def is_list(self) -> bool:
        return isinstance(self.default, tuple)

    @property
    def is_switch(self) -> bool:
        return isinstance(self.default, bool)

    def shown(self, value: Any) -> Any:
        """The value as it may be seen by anybody."""
        if value is None or value == ():
            return value
        if self.secret == "all":
            return (MASK,) * len(value) if isinstance(value, tuple) else MASK
        if isinstance(value, tuple | list):
            return type(value)(map(self.shown, value))
        return mask_url(value) if self.secret and isinstance(value, str) else value


@cache
def table() -> tuple[Setting, ...]:
    """Every setting, in the order in which they are documented."""
    hints = get_type_hints(Settings, include_extras=True)
    fields = msgspec.structs.fields(Settings)
    return tuple(_setting(field.name, field.default, hints[field.name]) for field in fields)


def _setting(name: str, default: Any, hint: Any) -> Setting:
    metas = [part for part in get_args(hint)[1:] if isinstance(part, Meta)]
    extra = {key: value for meta in metas for key, value in (meta.extra or {}).items()}
    help = next(meta.description for meta in metas if meta.description)
    return Setting(
        name=name,
        type=hint,
        default=default,
        env=ENV_PREFIX + name.upper(),
        flag=extra.get("flag", "--" + name.replace("_", "-")),
        help=help,
        expected=extra.get("expected") or _expected(get_args(hint)[0], metas),
        secret=extra.get("secret", ""),
    )


def _expected(kind: Any, metas: list[Meta]) -> str:
    """What a value must be, in words."""
    if kind is bool:
        return "true or false"
    if kind in (int, float):
        (meta,) = metas
        return f"a {'whole ' if kind is int else ''}number from {meta.ge} to {meta.le}"
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) is tuple:
        return "one or more of " + ", ".join(ROLES) + ", separated by commas"
    return "a text that is not empty"


# ---- loading ----------------------------------------------------------------------------------------------------


def load_settings(
    flags: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None, file: str | Path | None = None
) -> Settings:
    """The settings from all sources. `flags`: by name; None counts as not given. Raises InvalidSetting, which names
    the setting, where it was given, what was given and what was expected."""
    values: dict[str, Any] = {}
    given = [_from_file(Path(file))] if file is not None else []
    given += [_from_env(env or {}), _from_flags(flags or {})]
    for source in given:
        for setting, raw, place in source:
            values[setting.name] = _convert(setting, raw, place)
    return Settings(**values)


Given = Iterator[tuple[Setting, Any, str]]


def _from_file(path: Path) -> Given:
    text = _file_text(path)
    documents = read_yaml(text, str(path), InvalidSetting)
    if not documents:
        return
    if len(documents) > 1 or not isinstance(documents[0], dict):
        raise InvalidSetting(f"{path}: expected one mapping of settings, such as `port: 8080`")
    lines = key_lines(text)
    by_name = {setting.name: setting for setting in table()}
    for name, raw in documents[0].items():
        place = f"{path}:{lines.get(str(name), 1)}"
        if name not in by_name:
            raise _unknown(str(name), place, list(by_name))
        yield by_name[name], raw, place


def _file_text(path: Path) -> str:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise InvalidSetting(f"config: {path} is longer than {FILE_BYTES_MAX:,} bytes", field="config")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidSetting(f"config: {path} can't be read: {why}", field="config") from None


def _from_env(env: Mapping[str, str]) -> Given:
    by_env = {setting.env: setting for setting in table()}
    for name in sorted(env):
        if not name.startswith(ENV_PREFIX) or name in NO_SETTINGS or name.startswith(ENV_PREFIX_OF_TESTS):
            continue
        if name not in by_env:
            raise _unknown(name, "the environment", [*by_env, *ENV_OF_OTHERS])
        if not env[name].strip():
            raise InvalidSetting(f"{name} is set but empty; give {by_env[name].expected}, or unset it", field=name)
        yield by_env[name], env[name], name


def _from_flags(flags: Mapping[str, Any]) -> Given:
    by_name = {setting.name: setting for setting in table()}
    for name, raw in flags.items():
        if name not in by_name:
            raise _unknown(name, "the flags", list(by_name))
        if raw is None or raw == ():
            continue
        if by_name[name].is_list and not _split(raw):
            # `--api-key "$KEY"` with KEY unset must not open what was meant to be locked.
            raise InvalidSetting(
                f"{by_name[name].flag} is given but empty; give {by_name[name].expected}, or leave it out", field=name
            )
        yield by_name[name], raw, by_name[name].flag


def _unknown(name: str, place: str, known: list[str]) -> InvalidSetting:
    near = get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    return InvalidSetting(f"there is no setting {name!r} (in {place}); {hint}", field=name)


def _convert(setting: Setting, raw: Any, place: str) -> Any:
    plain = _split(raw) if setting.is_list else raw
    try:
        value = msgspec.convert(plain, setting.type, strict=False)
    except msgspec.ValidationError:
        raise _refused(setting, raw, place) from None
    if isinstance(value, float) and not math.isfinite(value):
        raise _refused(setting, raw, place)
    return tuple(dict.fromkeys(value)) if isinstance(value, tuple) else value


def _split(raw: Any) -> Any:
    """A text, or each text of a list, parted at its commas."""
    if isinstance(raw, str):
        return [part.strip() for part in raw.split(",") if part.strip()]
    if isinstance(raw, list | tuple) and all(isinstance(part, str) for part in raw):
        return [part for text in raw for part in _split(text)]
    return raw


def _refused(setting: Setting, raw: Any, place: str) -> InvalidSetting:
    given = MASK if setting.secret == "all" else repr(setting.shown(raw))
    return InvalidSetting(f"{setting.name}: {given} given in {place}; expected {setting.expected}", field=setting.name)


# ---- what is shown ----------------------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener on that address."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


_PASSWORD = re.compile(r"(://[^/?#:]*:).*(@)")
_PARAMETER = re.compile(r"([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*", re.IGNORECASE)


def mask_url(url: str) -> str:
    """A URL without its password, wherever the password stands."""
    return _PARAMETER.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1{MASK}\2", url))


def settings_table() -> str:
    """The table of settings in Markdown, as it stands in docs/settings.md."""
    lines = ["| setting | default | environment | flag | expected | meaning |", "| --- | --- | --- | --- | --- | --- |"]
    for s in table():
        cells = (f"`{s.name}`", _default_text(s), f"`{s.env}`", f"`{s.flag}`", s.expected, s.help)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _default_text(setting: Setting) -> str:
    if setting.default is None or setting.default == ():
        return "none"
    if setting.is_switch:
        return f"`{str(setting.default).lower()}`"
    return f"`{','.join(setting.default)}`" if setting.is_list else f"`{setting.default}`"
