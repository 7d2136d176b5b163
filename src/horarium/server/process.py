"""The server process: one node's services and its API in one event loop, from start to orderly stop.

Order matters at the end: waiting workers are answered first, then nothing new is accepted, then runs under way are
drained, then the last outcomes are written, and only then the store is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from horarium.errors import CallerError, HorariumError, InvalidSetting, Outage, StoreRefused
from horarium.interrupts import SIGNALS, ignore_signals
from horarium.node.backends import make_backend
from horarium.node.runtime import Options, Runtime, default_node_name
from horarium.ports import PAGE_MAX
from horarium.server.checks import is_loopback
from horarium.server.config import Settings
from horarium.server.crowd import Crowd
from horarium.server.http import HttpServer, make_server, open_files
from horarium.server.intake import FILES_KEPT
from horarium.server.listening import greeting, listen, own_url, tls_context
from horarium.server.logs import configure_logging
from horarium.server.memory import give_back, share_arenas
from horarium.siblings import ALONE, Siblings

if TYPE_CHECKING:
    from horarium.access.tokens import TokenPolicy, Tokens
    from horarium.api.app import Pages
    from horarium.api.guards import Keys
    from horarium.api.hosts import Hosts
    from horarium.doors.web import Door

STORE_WAIT_SECONDS = 60.0
"""How long a starting server waits for a store that does not answer yet."""
TURN_SECONDS = 0.0005
"""How long a thread keeps the interpreter at most while another one waits for it."""
FULL_PASS_AFTER = 30
"""Passes over younger objects before garbage is looked for among all, three times as many as usual: an answer in the
making is looked through each time, up to a tenth of a second for a large one, and no thread goes on meanwhile."""
OPEN_FILES = 20_000
"""Enough for as many waiting workers as the API takes, and for the rest."""

log = logging.getLogger("horarium")


def run_server(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM. The exit status: 0 after an orderly stop, 1 if it could not start,
    2 if a setting is wrong."""
    configure_logging(settings.log_format, settings.log_level)
    try:
        run(settings, lambda: _serve_alone(settings))
    except HorariumError as error:
        log.error("%s", error)
        return 2 if isinstance(error, CallerError) else 1
    return 0


def run(settings: Settings, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run this to its end, as the only work of this process. Raises as it does, and InvalidSetting."""
    share_arenas()
    take_short_turns()
    allow_open_files()
    with asyncio.Runner(loop_factory=loop_factory(settings.uvloop)) as runner:
        runner.run(main())


def loop_factory(wanted: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop: uvloop's, or the usual one."""
    if wanted == "off":
        return None
    try:
        import uvloop
    except ImportError:
        if wanted == "on":
            raise InvalidSetting("uvloop: is on, but uvloop is not installed; pip install 'horarium[uvloop]'") from None
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class Stopping:
    """What asks a process to stop: the first signal, or its supervisor. A second signal ends the grace."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.runtime: Runtime | None = None
        self.server: HttpServer | None = None
        self._signals = 0

    def listen(self) -> None:
        """Hear signals from here on."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled)

    def ask(self) -> None:
        """Stop in order."""
        self.asked.set()

    def hurry(self) -> None:
        """Stop, and wait no longer for runs under way."""
        self.asked.set()
        if self.runtime is not None:
            self.runtime.hurry()

    def leave(self) -> None:
        """Stop in order, and give up the port at once."""
        self.asked.set()
        if self.server is not None:
            self.server.stop_listening()

    def done(self) -> None:
        """All is done: signals change nothing any more."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        ignore_signals()

    def _signalled(self) -> None:
        self._signals += 1
        self.ask() if self._signals == 1 else self.hurry()


def _nothing() -> None:
    """No one waits for it."""


async def _serve_alone(settings: Settings) -> None:
    listener = listen(settings.host, settings.port) if "api" in settings.roles else None

    def greet() -> None:
        said = greeting(settings, own_url(settings, listener))
        log.info("horarium %s: %s", settings.node_name or default_node_name(), said)

    stopping = Stopping()
    await serve(settings, listener, stopping, ready=greet)
    log.info("stopped")
    stopping.done()


async def serve(
    settings: Settings,
    listener: socket.socket | None,
    stopping: Stopping,
    *,
    siblings: Siblings = ALONE,
    crowd: Crowd | None = None,
    opened: Callable[[], object] = _nothing,
    ready: Callable[[], object] = _nothing,
) -> None:
    """Serve until asked to stop. `crowd`: the processes that share the listener. `opened`: called once the store is
    open, its schema up to date; `ready`: once everything runs."""
    tls = tls_context(settings.tls_cert, settings.tls_key)
    backend = make_backend(settings.store, settings.namespace)
    runtime = Runtime(
        backend.store,
        _options(settings, _report_url(settings, own_url(settings, listener))),
        clock=backend.clock,
        signal=backend.signal,
        parts=backend.parts,
    )
    stopping.runtime = runtime
    stopping.listen()
    if not await _open(runtime, stopping.asked):
        return
    opened()
    try:
        if settings.held:
            await _hold_everything(runtime)
        if settings.simple_scheduler_enforce_concurrency and "simple-scheduler" in settings.doors:
            from horarium.doors.simple_scheduler import enforce_on_all

            await enforce_on_all(runtime.operations)
        await runtime.start()
        app = _app(runtime, settings, siblings) if listener else None
        server = make_server(app, runtime.telemetry.refused, tls=tls, crowd=crowd) if listener else None
        stopping.server = server
        serving = asyncio.create_task(server.serve([listener])) if server and listener else None
        _keep_what_stays()
        ready()
        await _until(stopping.asked, serving)
        log.info("stopping: what runs is given %g s to finish", settings.grace_seconds)
        await runtime.stop()
        if server is not None and serving is not None:
            server.should_exit = True
            await serving
    finally:
        await runtime.close()


async def _hold_everything(runtime: Runtime) -> None:
    """Before anything is planned or claimed: one hold, which other processes and a later start find."""
    from horarium.model.holds import HoldScope
    from horarium.wire.holds import HoldDefinition

    holds = runtime.operations.holds
    if any(hold.scope.all for hold in (await holds.page(True, None, PAGE_MAX)).items):
        return
    hold = await holds.add(HoldDefinition(scope=HoldScope(all=True), reason="started with --held"))
    log.warning("everything is held; look around, then lift it: horarium hold lift %s", hold.id)


async def _until(stop: asyncio.Event, serving: asyncio.Task[None] | None) -> None:
    """Wait for the signal, or for the HTTP server to end by itself."""
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait({waiting, serving} if serving else {waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def _open(runtime: Runtime, stop: asyncio.Event) -> bool:
    """Open the store; one that does not answer is tried again for a while, one that refuses the login is not. False:
    stopped meanwhile."""
    deadline = runtime.clock.monotonic() + STORE_WAIT_SECONDS
    pause = 0.2
    said = False
    while True:
        try:
            await runtime.open()
        except StoreRefused:
            raise
        except Outage as outage:
            if runtime.clock.monotonic() + pause > deadline:
                raise
            if not said:
                log.warning("the store can't be opened: %s; trying for %g s", outage, STORE_WAIT_SECONDS)
                said = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause)
            if stop.is_set():
                return False
            pause = min(pause * 2, 5.0)
        else:
            return True


def _keep_what_stays() -> None:
    """Objects loaded by now stay to the end: to look through them for garbage again and again would hold the event loop
    for tens of milliseconds each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], FULL_PASS_AFTER)
    gc.enable()
    give_back()


def take_short_turns() -> None:
    """Threads that work beside the event loop (forecasts, rules that cost much) hand the interpreter over sooner than
    after Python's 5 ms: an answer needs it a dozen times, and waited for each."""
    sys.setswitchinterval(TURN_SECONDS)


def allow_open_files() -> None:
    """As many open files as the system allows: each waiting worker keeps a connection open, and the usual 1,024 would
    not do."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def fitting(places: int) -> int:
    """How many HTTP targets are called at one time, at most `places`. Each takes a file while it is
    called, and for a while after that; where there are few, those for connections to us and for the store stay free."""
    files = open_files()
    fit = max(1, files // (2 if files > FILES_KEPT else 8))
    if fit < places:
        log.warning("%d HTTP targets are called at one time, not %d: this process may open %d files (ulimit -n)", fit,
                    places, files)  # fmt: skip
    return min(fit, places)


def _report_url(settings: Settings, own_url: str) -> str:
    """Where endpoints reach our API, as far as is known: 0.0.0.0 can't be called."""
    if settings.public_url:
        return settings.public_url.rstrip("/")
    if settings.host in ("0.0.0.0", "::", ""):
        parts = urlsplit(own_url)
        return f"{parts.scheme}://{socket.gethostname()}:{parts.port}"
    return own_url


def _options(settings: Settings, report_url: str) -> Options:
    """Most of them have the names of settings."""
    given = {field.name: getattr(settings, field.name) for field in fields(Options) if hasattr(settings, field.name)}
    # Clients of rrule-scheduler call their own cluster.
    given["allow_private_targets"] = settings.allow_private_targets or "rrule-scheduler" in settings.doors
    given["http_concurrency"] = fitting(settings.http_concurrency)
    given["public_url"] = settings.public_url if settings.dashboard else None
    return Options(
        **given,
        certificate=settings.tls_cert,
        report_url=report_url,
        report_secret=settings.api_keys[0] if settings.api_keys else None,
    )


def _app(runtime: Runtime, settings: Settings, siblings: Siblings = ALONE) -> Any:
    from horarium.api.app import create_app

    runtime.claims.join(siblings)
    runtime.news.join(siblings)
    tokens = _tokens(runtime, settings)
    app = create_app(
        runtime.operations,
        runtime.claims,
        health=runtime.health,
        telemetry=runtime.telemetry,
        api_keys=settings.api_keys,
        hosts=server_hosts(settings),
        tokens=tokens,
        client_id=settings.oidc_client_id,
        public_url=settings.public_url,
        news=runtime.news,
        pages=_pages(runtime, settings, tokens) if settings.dashboard else None,
        documented=_documented(settings),
        siblings=siblings,
        metrics=settings.metrics,
    )
    if settings.mcp:
        app = _with_agents(app)
    if settings.doors:
        app = _behind_doors(app, runtime, settings, siblings)
    if not settings.trusted_proxies:
        return app
    from horarium.api.proxies import BehindProxies

    return BehindProxies(app, settings.trusted_proxies)


def _with_agents(app: Any) -> Any:
    try:
        from horarium.agents.http import Agents
    except ImportError:
        message = "mcp: is on, and its library is not installed; pip install 'horarium[mcp]'"
        raise InvalidSetting(message, field="mcp") from None
    return Agents(app)


def _behind_doors(app: Any, runtime: Runtime, settings: Settings, siblings: Siblings) -> Any:
    from horarium.api.guards import keys_of
    from horarium.doors.opening import Doors

    count = runtime.telemetry.refused
    keys, _ = keys_of(runtime.operations, settings.api_keys, _tokens(runtime, settings), count, siblings)
    doors = list(_doors(runtime, settings, keys))
    return Doors(app, doors, server_hosts(settings), count, keys.refuse)


def _pages(runtime: Runtime, settings: Settings, tokens: Tokens | None) -> Pages:
    """The dashboard, with a sign-in at the issuer where there is a client for that."""
    from horarium.access.people import People
    from horarium.dashboard.app import dashboard

    people = None
    if tokens is not None and settings.oidc_client_id is not None:
        people = People(tokens, settings.oidc_client_id, settings.oidc_client_secret, runtime.clock)
    return partial(dashboard, tally=runtime.telemetry.tally, people=people, public_url=settings.public_url)


def _documented(settings: Settings) -> dict[str, Any]:
    """Paths of open doors that are part of the API's document."""
    if "rrule-scheduler" not in settings.doors:
        return {}
    from horarium.doors.rrule_document import PATHS

    return PATHS


def _doors(runtime: Runtime, settings: Settings, keys: Keys) -> Iterator[Door]:
    from horarium.doors.web import key_check

    operations = runtime.operations
    admit = key_check(keys, settings.door_open)
    if "rrule-scheduler" in settings.doors:
        from horarium.doors.rrule_scheduler import RruleScheduler

        yield RruleScheduler(operations, operations.context.entropy, admit)
    if "simple-scheduler" in settings.doors:
        from horarium.access.issuer import Issuer
        from horarium.access.tokens import TokenPolicy, Tokens
        from horarium.doors.simple_scheduler import SimpleScheduler

        policy = TokenPolicy(audience=settings.oidc_audience or "", scopes_only=True)
        tokens = Tokens(Issuer(settings.oidc_issuer or "", runtime.clock), policy, runtime.clock)
        enforce = settings.simple_scheduler_enforce_concurrency
        yield SimpleScheduler(operations, keys, tokens, settings.simple_scheduler_bus, enforce)
    if "scrape-scheduler" in settings.doors:
        from horarium.doors.scrape_scheduler import ScrapeScheduler

        runtime.failures.told_elsewhere.add(ScrapeScheduler.queue)
        log.info("server starting", extra={"addr": f"{settings.host}:{settings.port}"})
        yield ScrapeScheduler(operations, runtime.claims, admit, settings.scrape_ready_pop_seconds)


def _tokens(runtime: Runtime, settings: Settings) -> Tokens | None:
    from horarium.access.issuer import Issuer
    from horarium.access.tokens import Tokens

    if settings.oidc_issuer is None:
        return None
    return Tokens(Issuer(settings.oidc_issuer, runtime.clock), server_tokens_policy(settings), runtime.clock)


def server_tokens_policy(settings: Settings) -> TokenPolicy:
    """What a server with these settings asks of a token."""
    from horarium.access.tokens import TokenPolicy, role_of

    pairs = (text.partition("=") for text in settings.oidc_role_map)
    return TokenPolicy(
        audience=settings.oidc_audience or "",
        roles_claim=settings.oidc_roles_claim,
        role_map={value: role_of(role) for value, _, role in pairs},
    )


def server_hosts(settings: Settings) -> Hosts:
    """The names under which a server with these settings answers."""
    from horarium.api.hosts import allowed_hosts

    public = urlsplit(settings.public_url).hostname if settings.public_url else None
    names = [settings.host, *settings.allowed_hosts, *([public] if public else [])]
    return allowed_hosts(names, addresses=not is_loopback(settings.host))
