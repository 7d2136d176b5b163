"""The settings of a server: one table, checked once at the start.

`Settings` is the table: each field carries its type, default, bounds and help, and its names in the environment and on
the command line follow from it; `sources` fills it. Secrets and the store's password never appear in a `repr` or in a
message.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from horarium.delivery.secrets import ALLOWED_DEFAULT, DIR_DEFAULT, ENV_PREFIX_DEFAULT
from horarium.errors import InvalidSetting
from horarium.model.limits import NAMESPACE_PATTERN

ENV_PREFIX = "HORARIUM_"
FILE_SUFFIX = "_file"
"""A secret `x` may be given as `x_file`, `HORARIUM_X_FILE` or `--x-file`: the name of a file that holds it."""
MASK = "********"

Role = Literal["api", "planner", "dispatcher", "rescuer", "pruner"]
ROLES: tuple[Role, ...] = get_args(Role)
Text = Annotated[str, Meta(min_length=1, max_length=2_048)]
Key = Annotated[str, Meta(min_length=1, max_length=1_024, pattern=r"^[\x21-\x7e]+$")]

ProxyNetwork = Annotated[str, Meta(pattern=r"^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$", max_length=50)]
HostName = Annotated[str, Meta(pattern=r"^(\*\.)?[A-Za-z0-9_.:\[\]-]+$", max_length=255)]
DoorName = Literal["rrule-scheduler", "simple-scheduler", "scrape-scheduler"]
BusUrl = Annotated[str, Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._:@-]*=)?[a-z][a-z0-9+]*://", max_length=2_048)]


ROLE_PATTERN = (
    r"^[^=]+=(viewer|operator|producer|editor|worker|admin|(viewer|operator|producer|editor)(;[^=;]+=[^;]+)+)(?!\n)$"
)


def said(description: str, *, ge: float | None = None, le: float | None = None, **extra: str) -> Meta:
    """The line of a setting in the table. `extra`: its `flag`, what is `expected`, and whether it is `secret`, where
    these are not as its name and its type say."""
    return Meta(description=description, ge=ge, le=le, extra=extra)


class Settings(Struct, frozen=True, kw_only=True):
    """Every setting of a server. Durations are in seconds."""

    store: Annotated[
        Annotated[str, Meta(pattern=r"^[a-z][a-z0-9+]*://", max_length=2_048)],
        said(
            "URL of the store: memory://, sqlite:///path.db, postgresql://, cockroachdb://, redis:// or mongodb://.",
            secret="password",
            expected="a store URL such as sqlite:///horarium.db",
        ),
    ] = "sqlite:///horarium.db"
    namespace: Annotated[
        Annotated[str, Meta(pattern=NAMESPACE_PATTERN)],
        said(
            "Namespace within the store; namespaces do not see each other.", expected="1 to 63 letters, digits, - or _"
        ),
    ] = "default"
    host: Annotated[Text, said("Address on which the API listens. Beyond loopback it needs an API key.")] = "127.0.0.1"
    port: Annotated[int, said("Port on which the API listens; 0 takes any free one.", ge=0, le=65_535)] = 8080
    roles: Annotated[Annotated[tuple[Role, ...], Meta(min_length=1)], said("What this process does.")] = ROLES
    processes: Annotated[
        Annotated[int, Meta(ge=1, le=256)] | Literal["auto"],
        said(
            "How many processes serve on the one port and store; auto: one for each processor.",
            expected="a whole number from 1 to 256, or auto",
        ),
    ] = 1
    node_name: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}$")] | None,
        said(
            "Name of this node, unique among the nodes of a store; left out: host and process id. "
            "Several processes are NAME-1, NAME-2, ...",
            expected="1 to 200 letters, digits or . _ : @ -",
        ),
    ] = None
    log_format: Annotated[Literal["text", "json"], said("How log lines look.")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], said("The least severe log lines that are written.")
    ] = "info"
    api_keys: Annotated[
        tuple[Key, ...],
        said(
            "Keys that open the API, each sent as `Authorization: Bearer KEY`; none: it is open.",
            secret="all",
            flag="--api-key",
            expected="keys of visible ASCII characters, separated by commas",
        ),
    ] = ()
    signing_secret: Annotated[
        Text | None,
        said(
            "Secret that signs requests to HTTP targets (`whsec_...`); a job's own wins.",
            secret="all",
            expected="whsec_ followed by base64",
        ),
    ] = None
    secrets_env_prefix: Annotated[Text, said("What the variables begin with that hold the secrets `env:NAME`.")] = (
        ENV_PREFIX_DEFAULT
    )
    secrets_dir: Annotated[Text, said("The folder of the files that hold the secrets `file:NAME`.")] = DIR_DEFAULT
    secrets_allowed: Annotated[
        tuple[Text, ...],
        said("Which secrets a definition may name.", expected="patterns such as env:CRM_*, separated by commas"),
    ] = ALLOWED_DEFAULT
    smtp_url: Annotated[
        Annotated[str, Meta(pattern=r"^smtps?://[^\s]+$", max_length=2_048)] | None,
        said(
            "Mail server for channels of type email; `?from=ADDRESS` says who writes.",
            secret="password",
            expected="a URL such as smtps://USER:PASSWORD@mail.example.org",
        ),
    ] = None
    allow_private_targets: Annotated[bool, said("Let HTTP targets be private or loopback addresses.")] = False
    public_url: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^\s]+$", max_length=2_048)] | None,
        said(
            "Base of the URLs to which endpoints report; left out: http://HOST:PORT.",
            expected="an http:// or https:// URL",
        ),
    ] = None
    allowed_hosts: Annotated[
        tuple[HostName, ...],
        said(
            "Names under which the server may be addressed, beside loopback names, its own `host` and the "
            "host of `public_url`; beyond loopback every literal address is allowed too.",
            flag="--allowed-host",
            expected="host names such as jobs.example.com or *.example.com, separated by commas",
        ),
    ] = ()
    trusted_proxies: Annotated[
        tuple[ProxyNetwork, ...],
        said(
            "Proxies in front of this server: behind them, the last foreign address of `X-Forwarded-For` "
            "or `Forwarded` is that of the client, in the audit and wherever addresses are counted.",
            flag="--trusted-proxy",
            expected="addresses or networks such as 10.0.0.0/8, separated by commas",
        ),
    ] = ()
    dashboard: Annotated[bool, said("Serve the dashboard at `/`.")] = True
    oidc_issuer: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^\s]+$", max_length=2_048)] | None,
        said(
            "URL of an OpenID Connect issuer, exactly as in `iss`: its access tokens are accepted.",
            expected="an http:// or https:// URL",
        ),
    ] = None
    oidc_audience: Annotated[
        Text | None, said("What `aud` of an access token must hold; `any`: it is not checked.")
    ] = None
    oidc_client_id: Annotated[
        Text | None, said("Client at the issuer for the sign-in of people, in the dashboard and with `horarium login`.")
    ] = None
    oidc_client_secret: Annotated[
        Text | None,
        said(
            "Secret of that client, if it has one; it stays in the server.",
            secret="all",
            expected="the secret as the issuer shows it",
        ),
    ] = None
    oidc_roles_claim: Annotated[
        Text, said("The claim of an access token that holds roles; dots lead into objects.")
    ] = "roles"
    oidc_role_map: Annotated[
        tuple[Annotated[str, Meta(pattern=ROLE_PATTERN)], ...],
        said(
            "Which role a value of that claim gives (`VALUE=ROLE`), bound to labels if you want "
            "(`VALUE=ROLE;LABEL=TEXT`); none: values are the names of roles.",
            expected="VALUE=ROLE or VALUE=ROLE;LABEL=TEXT, separated by commas, or a mapping such as "
            "{billing-ops: {role: operator, labels: {team: billing}}}; roles: viewer, operator, producer, editor, "
            "worker, admin, of which the last two can't be bound",
        ),
    ] = ()
    tls_cert: Annotated[
        Text | None,
        said(
            "File with the server's TLS certificate and its chain (PEM); with `tls_key`, HTTPS is served.",
            expected="the name of a PEM file",
        ),
    ] = None
    tls_key: Annotated[
        Text | None, said("File with the private key of `tls_cert` (PEM).", expected="the name of a PEM file")
    ] = None
    plan_ahead_seconds: Annotated[float, said("How far ahead fire times become pending runs.", ge=0, le=86_400)] = 1.0
    execution_window_seconds: Annotated[
        float, said("How long before its instant a run may be claimed and held ready.", ge=0, le=60)
    ] = 0.0
    catch_up_per_second: Annotated[
        int, said("How many missed fire times become due each second after downtime.", ge=1, le=100_000)
    ] = 100
    jobs_max: Annotated[
        int,
        said(
            "How many due jobs this node plans at one time; the rest is left to other nodes, or to its next look.",
            ge=1,
            le=10_000,
        ),
    ] = 500
    http_concurrency: Annotated[
        int,
        said(
            "How many HTTP targets are called at one time; fewer where this process may open few files (`ulimit -n`).",
            ge=1,
            le=10_000,
        ),
    ] = 100
    http_breaker_failures: Annotated[
        int, said("How many requests to one host fail in a row until it is held (0: it never is).", ge=0, le=100_000)
    ] = 20
    http_breaker_seconds: Annotated[
        float, said("How long a host is held until one run is tried there.", ge=1, le=86_400)
    ] = 60.0
    handler_concurrency: Annotated[int, said("How many handlers run at one time.", ge=1, le=10_000)] = 100
    grace_seconds: Annotated[float, said("How long a stop waits for runs under way.", ge=0, le=86_400)] = 30.0
    audit_retention_seconds: Annotated[
        float,
        said(
            "How long audit entries are kept, and the versions of jobs that were deleted.", ge=3_600, le=3_155_760_000
        ),
    ] = 31_536_000.0
    run_log_seconds: Annotated[
        float, said("How long the log of a run is kept, from when the run was made.", ge=0, le=316_224_000)
    ] = 604_800.0
    run_log_bytes_max: Annotated[
        int, said("How much the logs of all runs take; beyond, the oldest go.", ge=0, le=2**50)
    ] = 1_073_741_824
    metrics: Annotated[
        Literal["open", "key", "off"], said("Who may read /metrics: all, those who may read jobs, or none.")
    ] = "open"
    metrics_jobs_max: Annotated[
        int, said("How many jobs /metrics shows by name; the rest is `_other`.", ge=0, le=100_000)
    ] = 1_000
    held: Annotated[bool, said("Start under a hold on everything, as for a restored copy; a person lifts it.")] = False
    mcp: Annotated[bool, said("Serve tools for agents (Model Context Protocol) at /mcp, for the same callers.")] = False
    bus_urls: Annotated[
        tuple[BusUrl, ...],
        said(
            "Message buses to which jobs may be sent: amqp://, amqps://, nats:// or redis://, each with "
            "the name that jobs use and an equals sign before it; a URL alone is the bus `default`.",
            secret="password",
            flag="--bus-url",
            expected="URLs such as amqp://rabbit/ or orders=nats://nats:4222, separated by commas",
        ),
    ] = ()
    doors: Annotated[
        tuple[DoorName, ...],
        said(
            "Doors that are open to clients of other schedulers.",
            flag="--door",
            expected="one or more of rrule-scheduler, simple-scheduler, scrape-scheduler, separated by commas",
        ),
    ] = ()
    door_open: Annotated[bool, said("Ask callers of rrule-scheduler's and scrape-scheduler's doors for no key.")] = (
        False
    )
    simple_scheduler_enforce_concurrency: Annotated[
        bool, said("Let `allowConcurrentRuns: false` of simple-scheduler's jobs have an effect.")
    ] = False
    simple_scheduler_bus: Annotated[Text, said("The bus on which the workers of simple-scheduler's jobs are.")] = (
        "default"
    )
    scrape_ready_pop_seconds: Annotated[float, said("How long a scrape worker waits for a job.", ge=0, le=60)] = 30.0
    scrape_jitter_seconds: Annotated[
        float, said("How far `door scrape-scheduler job` spreads runs after their fire time.", ge=0, le=86_400, flag="")
    ] = 30.0
    scrape_default_interval_seconds: Annotated[
        float,
        said("The interval that `door scrape-scheduler job` gives to jobs without one.", ge=1, le=315_619_200, flag=""),
    ] = 300.0
    uvloop: Annotated[Literal["auto", "on", "off"], said("Use uvloop; auto: where it is installed.")] = "auto"

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
    def of_doors(self) -> bool:
        """True if it matters only to clients of other schedulers."""
        return self.name.startswith(("door", "simple_scheduler_", "scrape_"))

    @property
    def is_list(self) -> bool:
        return isinstance(self.default, tuple)

    @property
    def file_name(self) -> str | None:
        """The name under which this setting is read from a file; None for one that is no secret."""
        return f"{self.name}{FILE_SUFFIX}" if self.secret else None

    @property
    def file_flag(self) -> str:
        return self.flag + FILE_SUFFIX.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        return isinstance(self.default, bool)

    def shown(self, value: Any) -> Any:
        """The value as anyone may see it: secrets masked."""
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
    """The allowed values, in words."""
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


_PASSWORD = re.compile(r"(://[^/?#:]*:).*(@)")
_PARAMETER = re.compile(r"([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*", re.IGNORECASE)


def mask_url(url: str) -> str:
    """A URL with its password masked, in any part of it."""
    return _PARAMETER.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1{MASK}\2", url))
