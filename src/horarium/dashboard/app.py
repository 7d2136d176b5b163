"""The pages put together: what the server hands to the API's application to serve beside its own routes."""

from __future__ import annotations

from horarium.access.people import People
from horarium.access.sessions import Sessions
from horarium.api.app import Entrance
from horarium.api.routing import Route
from horarium.dashboard.activity import Activity
from horarium.dashboard.attention import Watching
from horarium.dashboard.foresight import Foresight
from horarium.dashboard.site import Page, Pages, Site
from horarium.dashboard.views.access import AccessPages
from horarium.dashboard.views.acknowledge import Acknowledge
from horarium.dashboard.views.approvals import Approvals
from horarium.dashboard.views.batches import BatchPages
from horarium.dashboard.views.bulk import BulkRuns
from horarium.dashboard.views.bulk_jobs import BulkJobs
from horarium.dashboard.views.business_days import BusinessDays
from horarium.dashboard.views.calendar import Calendar
from horarium.dashboard.views.channels import Channels
from horarium.dashboard.views.compare import Comparing
from horarium.dashboard.views.deleted import DeletedJobs
from horarium.dashboard.views.edit import Editing
from horarium.dashboard.views.entry import Entry, IssuerEntry
from horarium.dashboard.views.failures import Failures
from horarium.dashboard.views.feeds import FeedPages
from horarium.dashboard.views.forecast import Forecasts
from horarium.dashboard.views.holds import Holds
from horarium.dashboard.views.job import JobPages
from horarium.dashboard.views.jobs import Jobs
from horarium.dashboard.views.overview import Overview
from horarium.dashboard.views.plans import Plans
from horarium.dashboard.views.queue import QueuePage
from horarium.dashboard.views.rates import Rates
from horarium.dashboard.views.run import RunPages
from horarium.dashboard.views.runs import Runs
from horarium.dashboard.views.search import Search
from horarium.dashboard.views.system import SystemPages
from horarium.dashboard.views.timeline import Timeline
from horarium.services.metrics.tallies import Tally


def pages_of(
    entrance: Entrance,
    tally: Tally,
    sessions: Sessions,
    people: People | None = None,
    public_url: str | None = None,
    watching: Watching | None = None,
) -> list[Page]:
    """Every page there is."""
    operations = entrance.operations
    watching, activity = watching or Watching(operations), Activity(operations.store, tally)
    jobs, foresight = Jobs(operations, watching), Foresight(operations.forecasting.several, operations.clock)
    tables: list[Pages] = [
        Search(operations, watching, jobs),
        Overview(operations, watching, activity),
        jobs,
        BulkJobs(operations, watching),
        DeletedJobs(operations),
        JobPages(operations),
        Acknowledge(operations, watching),
        Approvals(operations),
        Editing(operations),
        Runs(operations),
        BulkRuns(operations),
        RunPages(operations),
        BatchPages(operations),
        Calendar(operations, foresight),
        Forecasts(operations, foresight),
        Plans(operations),
        Failures(operations, watching),
        Comparing(operations),
        Timeline(operations, watching, entrance.claims),
        BusinessDays(operations),
        Holds(operations),
        Channels(operations),
        QueuePage(operations, entrance.claims, watching),
        Rates(operations),
        FeedPages(operations, public_url),
        AccessPages(operations, sessions, entrance.entropy),
        SystemPages(operations, entrance.claims, watching),
        Entry(entrance.keys, sessions, entrance.news, people),
    ]
    if people is not None:
        tables.append(IssuerEntry(entrance, sessions, people, public_url))
    return [page for table in tables for page in table.pages()]


def dashboard(
    entrance: Entrance, tally: Tally, people: People | None = None, public_url: str | None = None
) -> list[Route]:
    """The routes of the dashboard. `people`: who sign in at an issuer, which sends them back to `public_url`;
    behind an https:// one, cookies are for TLS alone."""
    sessions = Sessions(entrance.operations.store, entrance.operations.clock, entrance.entropy, entrance.siblings)
    watching = Watching(entrance.operations)
    site = Site(entrance.operations, entrance.keys, sessions, entrance.entropy, watching, people, public_url)
    return [site.route(page) for page in pages_of(entrance, tally, sessions, people, public_url, watching)]
