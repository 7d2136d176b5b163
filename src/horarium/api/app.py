"""The API as an ASGI application: the route tables put together, behind the guards.

`create_app` starts nothing and owns nothing: store, loops and the HTTP server are the caller's. Before it shuts the
HTTP server down, the caller must `close()` the claims, or the server waits for its long-polling workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import urandom
from types import MappingProxyType
from typing import Any, Literal

from msgspec import Struct

from horarium.access.tokens import Tokens
from horarium.api.access import AccessApi, SignInPlace
from horarium.api.approvals import Approvals
from horarium.api.attention import AttentionApi
from horarium.api.batches import BatchesApi
from horarium.api.bulk import BulkRuns
from horarium.api.calendars import CalendarsApi
from horarium.api.channels import ChannelsApi
from horarium.api.docs import Docs
from horarium.api.endpoints import Handlers, route
from horarium.api.explaining import Explanations
from horarium.api.feeds import FeedsApi
from horarium.api.guards import Keys, KnownHosts, keys_of, refuse_cross_site
from horarium.api.holds import HoldsApi
from horarium.api.hosts import Hosts
from horarium.api.jobs import Jobs
from horarium.api.openapi import build_document
from horarium.api.overrides import Overrides
from horarium.api.pings import Pings
from horarium.api.plans import PlansApi
from horarium.api.problems import Refusals
from horarium.api.queues import QueuesApi
from horarium.api.rates import RatesApi
from horarium.api.reach import Reach
from horarium.api.routing import Application, Route
from horarium.api.runs import Runs
from horarium.api.system import Health, System, Telemetry
from horarium.api.versions import JobVersions
from horarium.api.work import Work
from horarium.model.version import release
from horarium.operations.facade import Operations
from horarium.operations.writing.context import Entropy
from horarium.services.polling.claims import Claims
from horarium.services.polling.news import News
from horarium.siblings import ALONE, Siblings

PREFIX = "/api/v1"
MetricsFor = Literal["open", "key", "off"]
NOTHING_ELSE: Mapping[str, Any] = MappingProxyType({})


class Entrance(Struct, frozen=True):
    """What pages beside the API are made of: the same operations, and the same judge of who asks."""

    operations: Operations
    claims: Claims
    keys: Keys
    news: News
    entropy: Entropy
    siblings: Siblings


Pages = Callable[[Entrance], Sequence[Route]]
"""Makes the routes that are served beside the API's own."""

LOOPBACK = Hosts()
"""Names of this machine for itself, and no other."""

PARTS = (
    Runs, BulkRuns, JobVersions, Explanations, ChannelsApi, PlansApi, CalendarsApi, HoldsApi, Overrides, Approvals,
    BatchesApi, QueuesApi, AttentionApi, RatesApi, Pings,
)  # fmt: skip
"""Parts of the API that are made of the operations alone."""


def create_app(
    operations: Operations,
    claims: Claims,
    *,
    health: Health,
    telemetry: Telemetry,
    api_keys: Sequence[str] = (),
    hosts: Hosts = LOOPBACK,
    tokens: Tokens | None = None,
    client_id: str | None = None,
    entropy: Entropy = urandom,
    public_url: str | None = None,
    news: News | None = None,
    pages: Pages | None = None,
    documented: Mapping[str, Any] = NOTHING_ELSE,
    siblings: Siblings = ALONE,
    metrics: MetricsFor = "open",
) -> Application:
    """The application. With `api_keys`, everything under /api needs one of them; health, metrics and the
    documentation do not. `hosts`: under which names it answers. `tokens`: judges access tokens of an issuer;
    `client_id`: of a sign-in there. `news`: for those who listen; closed before the server stops. `pages`:
    the dashboard's (without them `/` is the documentation). `documented`: more paths. `siblings`: other processes.
    `metrics`: who may read them."""
    keys, named = keys_of(operations, api_keys, tokens, telemetry.refused, siblings)
    heard = news or News(operations.stats, operations.context.signal, lambda: 0)
    system = System(operations, claims, health, telemetry, trusted=keys.open, news=heard, siblings=siblings)
    parts: list[Handlers] = [
        Jobs(operations, public_url), Work(operations, claims), system, AccessApi(operations, named, entropy),
        FeedsApi(operations, public_url), SignInPlace(tokens, client_id, public_url),
    ]  # fmt: skip
    parts += [part(operations) for part in PARTS]
    every = [endpoint for part in parts for endpoint in part.endpoints()]
    measured = [] if metrics == "off" else [system.metrics_endpoint(open=metrics == "open")]
    guarded, beside = [each for each in every if not each.open], [*(each for each in every if each.open), *measured]

    def document() -> dict[str, Any]:
        made = build_document(
            [(PREFIX, guarded), ("", beside)], version=release(), keys=bool(api_keys) or tokens is not None
        )
        made["paths"].update(documented)
        return made

    check = Reach(operations).check
    return Application(
        [
            *(route(each, check, keys.refuse, PREFIX, keys.guard) for each in guarded),
            *(route(each, check, keys.refuse, guard=None if each.open else keys.guard) for each in beside),
            *(pages(Entrance(operations, claims, keys, heard, entropy, siblings)) if pages is not None else ()),
            *Docs(document).routes(home=pages is None),
        ],
        guards=[KnownHosts(hosts, telemetry.refused).guard, refuse_cross_site(telemetry.refused)],
        refusals=Refusals(operations.clock),
        closing=[claims.close, heard.close],
    )
