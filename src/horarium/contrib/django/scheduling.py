"""The scheduler of a Django project: made from its settings, on a store in memory in its tests, and careful with
connections: a handler gets none that was open too long, and leaves none behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Unpack
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from horarium.delivery.context import RunContext
from horarium.delivery.handler import HandlerFunction
from horarium.errors import InvalidRequest
from horarium.library.sync import SyncScheduler
from horarium.library.tasks import TaskOptions
from horarium.testing.swapping import in_memory, is_in_memory

KNOWN = {"STORE", "DATABASE", "NAMESPACE", "PROGRAM", "OPTIONS", "DASHBOARD"}
EXAMPLE = 'HORARIUM = {"STORE": "sqlite:///horarium.db"}, or {"DATABASE": "default"} for a PostgreSQL of DATABASES'

OF_CONNECTIONS = (
    "service", "passfile", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslcrl", "sslnegotiation",
    "ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs",
)  # fmt: skip
"""The OPTIONS of a database in DATABASES that say how it is reached: they hold for the store too."""


class DjangoScheduler(SyncScheduler):
    """A `SyncScheduler`. In a test environment of Django's it is on a store in memory, for the whole of the tests."""

    database: str | None = None
    """The alias of the database in which its store is."""
    _of_tests: ExitStack | None = None

    def enqueue_on_commit(
        self, handler: str | HandlerFunction, args: Mapping[str, Any] | None = None, **how: Unpack[TaskOptions]
    ) -> None:
        """As `enqueue`, if and when the present transaction commits: of the store's database (with STORE: of the
        default one), or else of the one other in which a transaction is open. Where the store is in the same database,
        the run is part of the transaction; elsewhere it is added right after the commit, with the args as they are now.
        Raises what `enqueue` raises for wrong ones, before anything commits."""
        alias = self._alias_of_transaction()
        if self.database == alias:
            self.enqueue(handler, args, **{"connection": connections[alias], **how})
            return
        kept = self._scheduler._checked(handler, args, how)
        transaction.on_commit(lambda: self.enqueue(handler, kept, **how), using=alias)

    def _alias_of_transaction(self) -> str:
        ours: str = self.database or DEFAULT_DB_ALIAS
        begun: list[str] = [each.alias for each in connections.all(initialized_only=True) if each.in_atomic_block]
        if ours in begun or not begun:
            return ours
        if len(begun) > 1:
            raise InvalidRequest(
                f"enqueue_on_commit: transactions of {' and '.join(begun)} are open, and none of {ours}; enqueue by "
                "transaction.on_commit(..., using=...), which names one of them"
            )
        return begun[0]

    def _prepare(self) -> None:
        if self._of_tests is None and hasattr(mail, "outbox") and not is_in_memory(self):  # a test environment
            self._of_tests = ExitStack()
            self._of_tests.enter_context(in_memory(self))


def _with_connections(run: RunContext) -> Iterator[None]:
    _close_old()
    try:
        yield
    finally:
        _close_old()


def _close_old() -> None:
    """As Django's own `close_old_connections`; but one in a transaction belongs to a test that performs a handler."""
    for each in connections.all(initialized_only=True):
        if not each.in_atomic_block:
            each.close_if_unusable_or_obsolete()


def make_scheduler() -> DjangoScheduler:
    """The scheduler that `settings.HORARIUM` describes. Raises ImproperlyConfigured."""
    given: Mapping[str, Any] = getattr(settings, "HORARIUM", None) or {}
    if unknown := sorted(given.keys() - KNOWN):
        raise ImproperlyConfigured(f"HORARIUM: there is no {unknown[0]!r}; give some of {', '.join(sorted(KNOWN))}")
    if ("STORE" in given) == ("DATABASE" in given):
        raise ImproperlyConfigured(f"HORARIUM: give one of STORE and DATABASE, such as {EXAMPLE}")
    alias = given.get("DATABASE")
    scheduler = DjangoScheduler(
        given["STORE"] if alias is None else database_url(alias, settings.DATABASES.get(alias, {})),
        namespace=given.get("NAMESPACE", "default"),
        program=given.get("PROGRAM"),
        **given.get("OPTIONS", {}),
    )
    scheduler.database = alias
    scheduler.around(_with_connections)
    return scheduler


def database_url(alias: str, database: Mapping[str, Any]) -> str:
    """The URL of a store in this database, given as in DATABASES. Raises ImproperlyConfigured."""
    if not str(database.get("ENGINE", "")).endswith("postgresql"):
        raise ImproperlyConfigured(f"HORARIUM: DATABASE {alias!r} is no PostgreSQL of DATABASES; give {EXAMPLE}")
    user, password = quote(database.get("USER") or "", safe=""), quote(database.get("PASSWORD") or "", safe="")
    host, port, options = database.get("HOST") or "", database.get("PORT"), database.get("OPTIONS") or {}
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    query = {name: options[name] for name in OF_CONNECTIONS if options.get(name) is not None}
    if host.startswith("/"):
        query, host = {"host": host, **query}, ""
    where = f"{f'[{host}]' if ':' in host else host}{f':{port}' if port else ''}"
    asked = f"?{urlencode(query)}" if query else ""
    return f"postgresql://{login}{where}/{quote(str(database.get('NAME') or ''), safe='')}{asked}"
