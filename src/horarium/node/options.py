"""How a node behaves: every option with its default, judged once, before anything is made of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from horarium.delivery.secrets import ALLOWED_DEFAULT, DIR_DEFAULT, ENV_PREFIX_DEFAULT
from horarium.errors import InvalidSetting
from horarium.model.logs import LOG_BYTES_TOTAL_DEFAULT, LOG_SECONDS_DEFAULT
from horarium.ports import Bus
from horarium.services.metrics.job_meters import JOBS_MAX_DEFAULT
from horarium.triggers.words import quote

ROLES = ("api", "planner", "dispatcher", "rescuer", "pruner")
CONCURRENCY_MAX = 10_000


def default_node_name() -> str:
    """A name that no other process on any host has at the same time."""
    return f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of a process that concern its node; docs/settings.md describes most of them, under the same names.
    The defaults are right for one machine. `report_url`, `report_secret`: where an endpoint that works on after its
    answer reports to, and what the keys for that are derived from. `queues`: of handlers that name a queue only those
    of these are performed here (None: all). Raises InvalidSetting, which names the option."""

    roles: Sequence[str] = ROLES
    node_name: str | None = None
    allow_private_targets: bool = False
    signing_secret: str | None = None
    report_url: str | None = None
    report_secret: str | None = None
    plan_ahead_seconds: float = 1.0
    execution_window_seconds: float = 0.0
    catch_up_per_second: float = 100.0
    jobs_max: int = 500
    http_concurrency: int = 100
    http_breaker_failures: int = 20
    http_breaker_seconds: float = 60.0
    handler_concurrency: int = 100
    queues: Sequence[str] | None = None
    grace_seconds: float = 30.0
    audit_retention_seconds: float | None = None
    metrics_jobs_max: int = JOBS_MAX_DEFAULT
    run_log_seconds: float = LOG_SECONDS_DEFAULT
    run_log_bytes_max: int = LOG_BYTES_TOTAL_DEFAULT
    capture_logging: bool = False
    buses: Mapping[str, str | Bus] | None = None
    smtp_url: str | None = None
    public_url: str | None = None
    certificate: str | None = None
    secrets_env_prefix: str = ENV_PREFIX_DEFAULT
    secrets_dir: str = DIR_DEFAULT
    secrets_allowed: Sequence[str] = ALLOWED_DEFAULT

    def __post_init__(self) -> None:
        for name in ("jobs_max", "http_concurrency", "handler_concurrency"):
            value = getattr(self, name)
            if not 1 <= value <= CONCURRENCY_MAX:
                raise InvalidSetting(f"{name}: must be from 1 to {CONCURRENCY_MAX:,}, not {value}", field=name)
        if not 0 <= self.grace_seconds < float("inf"):
            message = f"grace_seconds: must be 0 or more, not {self.grace_seconds}"
            raise InvalidSetting(message, field="grace_seconds")
        if self.smtp_url is not None:
            from horarium.delivery.mailing import parse_smtp_url

            parse_smtp_url(self.smtp_url)
        object.__setattr__(self, "roles", tuple(self.roles))
        object.__setattr__(self, "node_name", self.node_name or default_node_name())
        try:
            self.name.encode()
        except UnicodeEncodeError:
            message = f"node_name: {quote(self.name)} holds half of a surrogate pair, which is no text"
            raise InvalidSetting(message, field="node_name") from None
        object.__setattr__(self, "buses", dict(self.buses or {}))

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node_name or default_node_name()
