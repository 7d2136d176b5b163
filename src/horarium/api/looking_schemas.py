"""The shapes of requests and answers about logs of runs, and why jobs run or do not."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from horarium.api.limits import STREAM_CHARS_MAX
from horarium.api.schemas import Cursor, Page, PageQuery, Since, Token, Until
from horarium.clock import to_datetime
from horarium.model import Disposition
from horarium.model.holds import HeldMissed
from horarium.operations.looking.upcoming import Ahead
from horarium.operations.runs.logs import LINES_MAX
from horarium.operations.runs.logs import WAIT_SECONDS_MAX as LOG_WAIT_SECONDS_MAX
from horarium.operations.runs.waiting import RUN_WAIT_SECONDS_MAX
from horarium.rules.holds import FOREVER, InForce
from horarium.wire.definitions import Moment
from horarium.wire.overrides import OverrideView, override_view
from horarium.wire.views import RunView

Stream = Annotated[
    str, Meta(min_length=1, max_length=STREAM_CHARS_MAX, description="What said it: stdout, stderr, or another name.")
]


class ExplainQuery(PageQuery, forbid_unknown_fields=True, kw_only=True):
    """An instant (left out: now), or a span whose fire times are explained one by one."""

    at: Annotated[datetime, Meta(tz=True, description="The instant (RFC 3339).")] | UnsetType = UNSET
    since: Since | UnsetType = UNSET
    until: Until | UnsetType = UNSET


class WaitQuery(Struct, forbid_unknown_fields=True):
    """Whether to wait for the end of a run (long poll)."""

    wait_seconds: Annotated[
        float,
        Meta(ge=0, le=RUN_WAIT_SECONDS_MAX, description="How long to wait for its end where it is not over yet."),
    ] = 0.0


class LogQuery(Struct, forbid_unknown_fields=True):
    """From where on a run's log is read. With `wait_seconds`, the answer comes as soon as there is a line (long
    poll)."""

    after: Cursor | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=LINES_MAX, description="How many lines are answered at most.")] = LINES_MAX
    wait_seconds: Annotated[
        float, Meta(ge=0, le=LOG_WAIT_SECONDS_MAX, description="How long to wait for a line where there is none yet.")
    ] = 0.0


class LineRequest(Struct, forbid_unknown_fields=True):
    """One line. `at` left out: now."""

    text: str
    stream: Stream = "stdout"
    at: Moment | None = None


class LogRequest(Struct, forbid_unknown_fields=True):
    """Lines of a run's log, in order. A plain text is a line of `stdout`. Lines longer than 8 KiB are cut."""

    token: Token
    lines: Annotated[list[str | LineRequest], Meta(max_length=LINES_MAX)]


class LineView(Struct):
    """One line of a run's log. A gap in the middle is told by a line of the stream `horarium`."""

    at: datetime
    stream: str
    text: str


class LogView(Page[LineView]):
    """Lines of a run's log. `next_cursor`: where to go on; null once the run is over and all of it was read."""


class Kept(Struct):
    """How many lines were kept."""

    lines: int


class ExplanationView(Struct, kw_only=True):
    """Why a job ran, did not run, will run or will not run at an instant. `fires`: whether it did or will. `run`: what
    it became. `previous` and `next`: the fire times around it. `missing`: of a job that follows others, those whose
    run has not come in its window."""

    at: datetime
    fires: bool
    disposition: Disposition | UnsetType = UNSET
    run: RunView | UnsetType = UNSET
    reason: str
    previous: datetime | None
    next: datetime | None
    missing: list[str] | UnsetType = UNSET


class ExplanationAnswer(Struct, kw_only=True):
    """Of an instant: the explanation. Of a span: `items`, one explanation for each fire time, and `next_cursor`."""

    at: datetime | UnsetType = UNSET
    fires: bool | UnsetType = UNSET
    disposition: Disposition | UnsetType = UNSET
    run: RunView | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    previous: datetime | UnsetType | None = UNSET
    next: datetime | UnsetType | None = UNSET
    missing: list[str] | UnsetType = UNSET
    items: list[ExplanationView] | UnsetType = UNSET
    next_cursor: str | UnsetType | None = UNSET


class PingQuery(Struct):
    """`rid`: which execution a ping is about, where several may be under way at one time."""

    rid: Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9-]*(?!\n)$", description="A UUID.")] = ""


class HeldView(Struct):
    """The hold over a fire time, until then (null: until it is lifted), and what becomes of it afterwards."""

    id: str
    until: datetime | None
    reason: str
    missed: HeldMissed


class AheadView(Struct):
    """One instant ahead at which a job runs. `override`: by which a fire time was moved there; `held`: the hold that
    keeps it from its begin."""

    job: str
    fire_at: datetime
    override: OverrideView | UnsetType = UNSET
    held: HeldView | UnsetType = UNSET


class UpcomingView(Struct):
    """Fire times of all jobs, earliest first. `truncated`: there are more in the span."""

    items: list[AheadView]
    truncated: bool


def ahead_view(ahead: Ahead) -> AheadView:
    return AheadView(
        ahead.job,
        to_datetime(ahead.fire_at),
        UNSET if ahead.moved is None else override_view(ahead.moved),
        UNSET if ahead.held is None else _held_view(ahead.held),
    )


def _held_view(held: InForce) -> HeldView:
    end = held.stretch.ends_at
    return HeldView(held.hold.id, None if end >= FOREVER else to_datetime(end), held.hold.reason, held.hold.missed)
