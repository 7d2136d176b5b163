"""The endpoint that says why: a job at an instant, or at each fire time of a span."""

from __future__ import annotations

from msgspec import UNSET

from horarium.access.roles import Principal, Scope
from horarium.api.endpoints import Answer, Call, Endpoint, Handlers, answer
from horarium.api.looking_schemas import ExplainQuery, ExplanationAnswer, ExplanationView
from horarium.api.problems import InvalidContent
from horarium.api.reading import job_name, read_cursor, write_cursor
from horarium.api.runs import bounded_instant
from horarium.clock import moment, to_datetime
from horarium.rules.explaining import Explanation
from horarium.wire.faults import Fault
from horarium.wire.views import run_view

CURSOR_DIGITS_MAX = 18


class Explanations(Handlers):
    @Endpoint(
        "GET", "/jobs/{name}/explain", "explainJob", tag="jobs", scope=Scope.JOBS_READ, query=ExplainQuery, costly=True,
        summary="Why a job ran, did not run, will run or will not run",
        description="With `at` (left out: now) one explanation; with `since` and `until` a page of them, one "
        "for each fire time of the span, those that the rule excludes too. The past is judged by the job as it "
        "was then.",
        answers={200: (ExplanationAnswer, "Why")}, problems=("not_found", "invalid_cursor", "too_expensive"),
    )  # fmt: skip
    async def explain(self, call: Call) -> Answer:
        query: ExplainQuery = call.query
        name = job_name(call.request)
        since, until = bounded_instant(query.since, "since"), bounded_instant(query.until, "until")
        after = read_cursor("explain", query.cursor, _is_instant)
        if since is None and until is None:
            return answer(
                _view(await self._operations.explaining.at(name, bounded_instant(query.at, "at")), call.principal)
            )
        if since is None or until is None or query.at is not UNSET:
            raise InvalidContent([Fault("since", "give `at` alone, or `since` and `until` together")])
        page = await self._operations.explaining.between(
            name, since, until, query.limit, None if after is None else int(after)
        )
        more = None if page.next_after is None else str(page.next_after)
        return answer(
            ExplanationAnswer(
                items=[_view(item, call.principal) for item in page.items], next_cursor=write_cursor("explain", more)
            )
        )


def _is_instant(text: str) -> bool:
    return len(text) < CURSOR_DIGITS_MAX and text.isdecimal()


def _view(told: Explanation, reader: Principal) -> ExplanationView:
    run = told.run
    if run is not None and Scope.RUNS_READ not in reader.scopes:
        told = told._replace(
            run=None, disposition=None, reason=f"there is a run of that instant, which {reader.name} may not see"
        )
    return ExplanationView(
        at=to_datetime(told.at),
        fires=told.fires,
        disposition=told.disposition or UNSET,
        run=UNSET if told.run is None else run_view(told.run),
        reason=told.reason,
        previous=moment(told.previous),
        next=moment(told.next),
        missing=list(told.missing) or UNSET,
    )
