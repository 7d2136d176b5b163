"""The pages put together: what the server hands to the API's application to serve beside its own routes."""

from __future__ import annotations

from horarium.access.people import People
from horarium.access.sessions import Sessions
from horarium.api.app import Entrance
from horarium.api.routing import Route
from horarium.dashboard.activity import Activity
from horarium.dashboard.attention import Watching
from horarium.dashboard.foresight import Foresight
from horarium.dashboard.site import Page, Site
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
from horarium.dashboard.views.entry import Entry
from horarium.dashboard.views.failures import Failures
from horarium.dashboard.views.feeds import FeedPages
from horarium.dashboard.views.forecast import Forecasts
from horarium.dashboard.views.holds import Holds
from horarium.dashboard.views.issuer import IssuerEntry
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
    return [
        *Search(operations, watching, jobs).pages(),
        *Overview(operations, watching, activity).pages(),
        *jobs.pages(),
        *BulkJobs(operations, watching).pages(),
        *DeletedJobs(operations).pages(),
        *JobPages(operations).pages(),
        *Acknowledge(operations, watching).pages(),
        *Approvals(operations).pages(),
        *Editing(operations).pages(),
        *Runs(operations).pages(),
        *BulkRuns(operations).pages(),
        *RunPages(operations).pages(),
        *BatchPages(operations).pages(),
        *Calendar(operations, foresight).pages(),
        *Forecasts(operations, foresight).pages(),
        *Plans(operations).pages(),
        *Failures(operations, watching).pages(),
        *Comparing(operations).pages(),
        *Timeline(operations, watching, entrance.claims).pages(),
        *BusinessDays(operations).pages(),
        *Holds(operations).pages(),
        *Channels(operations).pages(),
        *QueuePage(operations, entrance.claims, watching).pages(),
        *Rates(operations).pages(),
        *FeedPages(operations, public_url).pages(),
        *AccessPages(operations, sessions, entrance.entropy).pages(),
        *SystemPages(operations, entrance.claims, watching).pages(),
        *Entry(entrance.keys, sessions, entrance.news, people).pages(),
        *(() if people is None else IssuerEntry(entrance, sessions, people, public_url).pages()),
    ]


def dashboard(
    entrance: Entrance, tally: Tally, people: People | None = None, public_url: str | None = None
) -> list[Route]:
    """The routes of the dashboard. `people`: who sign in at an issuer, which sends them back to `public_url`;
    behind an https:// one, cookies are for TLS alone."""
    sessions = Sessions(entrance.operations.store, entrance.operations.clock, entrance.entropy, entrance.siblings)
    watching = Watching(entrance.operations)
    site = Site(entrance.operations, entrance.keys, sessions, entrance.entropy, watching, people, public_url)
    return [site.route(page) for page in pages_of(entrance, tally, sessions, people, public_url, watching)]
