"""Timeline: real durations side by side; what overlapped, what waits and why, what runs until when, what comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from horarium.access.roles import Scope
from horarium.clock import DAY, HOUR, MINUTE, Instant
from horarium.dashboard.attention import Attention, Watching, usual_of
from horarium.dashboard.formats import (
    address,
    clock_text,
    duration,
    in_words,
    instant_of,
    local,
    queue_name,
    relative,
    span,
    utc_text,
)
from horarium.dashboard.lanes import Axis, Band, Bar, Lane, Piece, lane_of, room_for, word_in
from horarium.dashboard.marks import RUNNING, attempts_of, mark_of
from horarium.dashboard.site import Answer, Page, Pages, Shown, Visit
from horarium.dashboard.strips import ahead_of
from horarium.model import Job, Run, State, timeline
from horarium.model.holds import Hold
from horarium.operations.bounds.listing import Slices
from horarium.operations.facade import Operations
from horarium.operations.looking.attending import LATE_AFTER, is_lost
from horarium.operations.looking.upcoming import upcoming
from horarium.ports import PAGE_MAX, QueueStats, RunFilter
from horarium.rules.approving import is_waiting
from horarium.rules.error_lines import error_line
from horarium.rules.holds import FOREVER, Stretch, is_held, stretches
from horarium.services.polling.claims import Claims
from horarium.triggers.words import counted

SPANS = {"1h": HOUR, "6h": 6 * HOUR, "24h": DAY, "7d": 7 * DAY}
LANES = ("queue", "job", "worker")
READ_MAX = 600
PAGES_MAX = 5
"""Pages of runs that are read at most: of those that were due before the span, few reach into it."""
BEFORE = 6 * HOUR
"""How long before the span a run that reaches into it may have been due, unless it goes on still."""
AHEAD_MAX, AHEAD_JOBS = 150, 60
LANES_SHOWN = 12
LISTED_MAX, FAILED_SHOWN = 20, 8
TICKS = 6
WORDS_HEIGHT = 14
"""The line below the bars of a lane for the words of its bands."""
KINDS = {"completed": "done", "failed": "fail", "lost": "lost", "running": "run", "cancelled": "unk"}
GOING = frozenset({State.RUNNING, State.CANCELLING})
UNKNOWN = 5 * MINUTE
"""How long a run is drawn whose job has not completed any."""


class Timeline(Pages):
    """The page at `/timeline`."""

    def __init__(self, operations: Operations, watching: Watching, claims: Claims) -> None:
        self._operations = operations
        self._watching = watching
        self._claims = claims

    @Page("GET", "/timeline", "timeline", scope=Scope.RUNS_READ, also=Scope.JOBS_READ, place="timeline")
    async def show(self, visit: Visit) -> Answer:
        name = visit.one_of("span", SPANS) or "1h"
        length = SPANS[name]
        by = visit.text("by") if visit.text("by").startswith("label:") else visit.one_of("by", LANES) or "queue"
        given = instant_of(visit.text("at"), "at", "UTC")
        now = visit.now
        since = now - length * 3 // 5 if given is None else given
        axis = Axis(since, since + length)
        past, read_from = await self._past(axis, now)
        going, more = await self._unfinished(now)
        runs = list({run.id: run for run in (*going, *past)}.values())
        ahead = None
        if axis.until > now + 1:
            store, begin = self._operations.store, max(axis.since, now + 1)
            ahead = await upcoming(store, begin, axis.until, AHEAD_MAX, AHEAD_MAX, AHEAD_JOBS)
        coming = () if ahead is None else ahead.items
        names = list(dict.fromkeys([run.job for run in runs if run.job] + [one.job for one in coming]))
        jobs = {job.name: job for job in await self._operations.store.get_jobs(names[:PAGE_MAX]) if job is not None}
        usual = await usual_of(self._operations, names[:PAGE_MAX], now)
        bars, slices = list[Bar](), Slices()
        for run in runs:
            bar = _bar(run, jobs.get(run.job or ""), by, usual, now)
            if bar is not None and bar.end > axis.since and bar.begin < axis.until:
                bars.append(bar)
            await slices.give_way()
        for one in coming:
            job = jobs.get(one.job)
            if job is not None:
                bars.append(_coming(job, one.fire_at, by, usual, now, visit.zone))
        attention = await self._watching.look()
        queues = attention.stats.queues
        lanes, hidden = _lanes(bars, axis)
        if by == "queue":
            await self._at_queues(lanes, axis, attention, going, visit)
        for lane in lanes:
            lane.make_room()
        failed = [run for run in runs if run.state is State.FAILED and run.fire_at >= axis.since]
        left_out = [bar for of in hidden.values() for bar in of]
        return Shown(
            "timeline.html",
            {
                "axis": axis,
                "lanes": lanes,
                "ticks": _ticks(axis, visit.zone),
                "now_x": axis.x(now) if axis.since <= now < axis.until else None,
                "left_out": sum(lane.left_out for lane in lanes) + len(left_out),
                "failed_left_out": sum(lane.failed_left_out for lane in lanes)
                + sum(bar.worst == 0 for bar in left_out),
                "hidden": len(hidden),
                "cut": read_from >= axis.since or more or (ahead is not None and ahead.truncated),
                "read_from": read_from if read_from > axis.since - BEFORE else None,
                "until": _until(going, usual, now),
                "failed": failed[:FAILED_SHOWN],
                "failed_more": len(failed) - FAILED_SHOWN,
                "error_line": error_line,
                "chosen": _chosen(visit.text("run"), runs, jobs, visit),
                **_links(name, by, axis, given, _label_of(jobs.values())),
                **_verdict(queues),
            },
        )

    async def _at_queues(
        self, lanes: Sequence[Lane], axis: Axis, attention: Attention, going: Sequence[Run], visit: Visit
    ) -> None:
        """The lanes, with the places and workers of their queues. A bound visitor does not see the workers."""
        holds = await self._operations.reconciler.holding.look()
        free = {} if visit.principal.bound else (await self._claims.waiting_everywhere()).places
        known = {queue_name(one.queue): one for one in attention.stats.queues}
        ours = Counter[str]()
        for node in attention.nodes:
            if node.stopped_at is None and not is_lost(node, visit.now):
                ours.update(node.places)
        for lane in lanes:
            queue = known.get(lane.name)
            idle = QueueStats(lane.name, 0, 0, 0, None)
            lane.note = _places(queue or idle, going, free.get(lane.name if queue is None else queue.queue, 0), ours)
            _at_queue(lane, axis, holds, queue, visit)

    async def _past(self, axis: Axis, now: Instant) -> tuple[list[Run], Instant]:
        """Runs that reach into the span, the newest first; and from which fire time on they were read."""
        found: list[Run] = []
        after: str | None = None
        begin, read_from = axis.since - BEFORE, min(axis.until, now + 1)
        where = RunFilter(since=max(begin, 0), until=read_from)
        if axis.since >= now:
            return found, begin
        for _ in range(PAGES_MAX):
            page = await self._operations.store.list_runs(where, after, PAGE_MAX)
            found += (run for run in page.items if (run.finished_at or now) >= axis.since)
            if (after := page.next_after) is None:
                return found, begin
            read_from = min((read_from, *(run.fire_at for run in page.items[-1:])))
            if len(found) >= READ_MAX:
                break
        return found, read_from

    async def _unfinished(self, now: Instant) -> tuple[list[Run], bool]:
        """What goes on or is due, however long ago it began."""
        where = RunFilter(states=GOING | {State.PENDING}, until=now + 1)
        page = await self._operations.store.list_runs(where, None, PAGE_MAX)
        return list(page.items), page.next_after is not None


def _lane_name(run_queue: str, job: Job | None, name: str | None, worker: str | None, by: str) -> str:
    match by:
        case "queue":
            return queue_name(run_queue)
        case "job":
            return name or f"one-off, {queue_name(run_queue)}"
        case "worker":
            return worker or "no worker yet"
    label = by.removeprefix("label:")
    return (job.labels.get(label) if job is not None else None) or f"without {label}"


def _bar(run: Run, job: Job | None, by: str, usual: dict[str, Instant], now: Instant) -> Bar | None:
    """What is drawn of a run; None: it has not begun, and is not due."""
    lane = _lane_name(run.queue, job, run.job, run.worker, by)
    name = run.job or "one-off"
    usually = usual.get(run.job or "")
    if run.state is State.PENDING and not run.attempt:
        if run.due_at > now:
            return None
        late = now - run.due_at
        words = f"{name}: due {duration(late)} ago, waits"
        waits = Piece("unk", now, now + (usually or UNKNOWN))
        return Bar(lane, run.job or "", words, (waits,), run.due_at, waits=late > LATE_AFTER, run=run.id)
    attempts = attempts_of(run, timeline(run), now)
    if not attempts:
        return None
    pieces = tuple(Piece(KINDS.get(how, "done"), begin, max(end, begin + 1)) for _, begin, end, how in attempts)
    if run.state in GOING:
        expected = pieces[-1].begin + (usually or 0)
        if expected > now:
            pieces = (*pieces, Piece("exp", now, expected))
    elif run.state is State.PENDING:
        pieces = (*pieces, Piece("exp", max(run.due_at, now), max(run.due_at, now) + (usually or UNKNOWN)))
    took = pieces[-1].end - pieces[0].begin
    word = "runs for" if run.state in GOING else f"{run.state} in"
    went = now - pieces[0].begin if run.state in GOING else took
    tried = f", attempt {run.attempt}" if run.attempt > 1 else ""
    due = run.due_at if len(attempts) == 1 and pieces[0].begin - run.due_at > LATE_AFTER else None
    return Bar(lane, run.job or "", f"{name} {word} {duration(went)}{tried}", pieces, due, run=run.id)


def _coming(job: Job, at: Instant, by: str, usual: dict[str, Instant], now: Instant, zone: str) -> Bar:
    lane = _lane_name(job.queue, job, job.name, None, by)
    usually = usual.get(job.name)
    length = f"usually {duration(usually)}" if usually else "length not known"
    title = f"{job.name}: {local(at, zone):%a %H:%M}, {relative(at, now)}, {length}"
    return Bar(lane, job.name, title, (Piece("exp" if usually else "unk", at, at + (usually or MINUTE)),))


def _lanes(bars: Sequence[Bar], axis: Axis) -> tuple[list[Lane], dict[str, list[Bar]]]:
    """The lanes that are drawn, what is wrong first; and those that are not."""
    found: dict[str, list[Bar]] = {}
    for bar in bars:
        found.setdefault(bar.lane, []).append(bar)
    names = sorted(found, key=lambda name: (min(bar.worst for bar in found[name]), -len(found[name]), name))
    lanes = [lane_of(name, found[name], axis) for name in names[:LANES_SHOWN]]
    for lane in lanes:
        if all(bar.name == lane.name for bar in found[lane.name]):
            lane.words = []
    return lanes, {name: found[name] for name in names[LANES_SHOWN:]}


def _places(queue: QueueStats, going: Sequence[Run], free: int, ours: Mapping[str, int]) -> str:
    """How many places are used of those that there are: `ours` are those of nodes; those of workers that wait are free;
    runs under way that share a concurrency key are limited by it. Else it is not known."""
    if (places := ours.get(queue.queue.partition("/")[0], 0)) and queue.queue != "handler":
        shared = f"{queue.running:,} used of {places:,} places for all handlers"
        return f"{queue.running:,} of {places:,} places used" if queue.queue == "http" else shared
    used, here = queue.running, [run for run in going if run.queue == queue.queue and run.state in GOING]
    limits = {(run.concurrency_key, run.concurrency_max) for run in here}
    most = used + free if free else 0
    if not free and len(here) == used and len(limits) == 1:
        ((key, limit),) = limits
        most = limit if key is not None else 0
    if most:
        return f"{used:,} of {most:,} places used"
    return f"{used:,} used, places not known" if used else ""


def _label_of(jobs: Iterable[Job]) -> str:
    """The label that most of these jobs have, as lanes are named by it; else nothing."""
    names = Counter(name for job in jobs for name in job.labels)
    return f"label:{min(names, key=lambda name: (-names[name], name))}" if names else ""


def _chosen(run_id: str, runs: Sequence[Run], jobs: Mapping[str, Job], visit: Visit) -> dict[str, Any] | None:
    """The run that was asked for, or the last one that failed; with the number of those that went on beside it."""
    failed = max((run for run in runs if run.state is State.FAILED), key=lambda run: run.fire_at, default=None)
    run = next((run for run in runs if run.id == run_id), failed)
    if run is None:
        return None
    job, begun, end = jobs.get(run.job or ""), run.started_at, run.finished_at or visit.now
    beside = [
        one
        for one in runs
        if one.id != run.id and one.queue == run.queue and begun is not None and one.started_at is not None
        if one.started_at < end and (one.finished_at or visit.now) > begun
    ]
    fires = [] if job is None or not job.enabled else ahead_of(job, visit.now, 1)
    return {
        "run": run,
        "mark": mark_of(run, visit.now),
        "late": None if begun is None or run.attempt > 1 else max(begun - run.due_at, 0),
        "beside": f"{counted(len(beside), 'other run')} of {queue_name(run.queue)}" if begun is not None else None,
        "next": next(iter(fires), None),
    }


def _at_queue(lane: Lane, axis: Axis, holds: Iterable[Hold], queue: QueueStats | None, visit: Visit) -> None:
    """The lane of a queue with its holds, how many runs go on, and since when a run waits that no worker takes."""
    for hold in holds:
        if any(is_held(hold.scope, name) for name in (lane.name, f"pull/{lane.name}")):
            lane.bands += [_band(hold, part, axis, visit) for part in stretches(hold, axis.since, axis.until)]
    said = [band for band in lane.bands if band.has_room]
    lane.height += WORDS_HEIGHT * bool(said)
    lane.words += (word_in(band.width, band.text_x, lane.height - 6, band.text, "bandt holdt") for band in said)
    if queue is None:
        return
    if queue.unserved:
        since = visit.now if queue.oldest_due_at is None else queue.oldest_due_at
        lane.bad, lane.note = True, f"no worker; a run waits since {clock_text(since, visit.zone, visit.now)}"
        x = axis.x(since)
        lane.bands.append(Band(x, round(axis.x(visit.now) - x, 2), lane.note.capitalize(), kind="dead"))
    lane.label += "".join(f"; {said}" for said in (lane.note, *(band.text for band in lane.bands)) if said)


def _band(hold: Hold, part: Stretch, axis: Axis, visit: Visit) -> Band:
    x, begin, end = axis.x(part.begins_at), local(part.begins_at, visit.zone), local(part.ends_at, visit.zone)
    inside = axis.since <= part.begins_at and part.ends_at <= axis.until and begin.date() == end.date()
    until = f"{begin:%H:%M} to {end:%H:%M}" if inside else f"until {end:%a %H:%M}"
    text = f"Hold {until if part.ends_at < FOREVER else 'until it is lifted'}"
    band = Band(x, round(axis.x(part.ends_at) - x, 2), f"{text}: {hold.reason}", text, x)
    now_x, length = axis.x(visit.now), room_for(text)
    beyond = x <= now_x < x + length and now_x + length < x + band.width  # the now-line crosses no words
    return replace(band, text_x=now_x) if beyond else band


def _verdict(queues: Sequence[QueueStats]) -> dict[str, Any]:
    """How many run and wait, exactly, and for whom in vain."""
    running, waiting = sum(queue.running for queue in queues), sum(queue.due for queue in queues)
    unserved = [queue_name(queue.queue) for queue in queues if queue.unserved]
    return {"heading": _heading(running, waiting), "unserved": unserved[:3]}


def _heading(running: int, waiting: int) -> str:
    if not running and not waiting:
        return "Nothing runs and nothing waits"
    runs = f"{in_words(running)} {'runs' if running == 1 else 'run'} now" if running else "Nothing runs now"
    waits = f"{in_words(waiting).lower()} {'waits' if waiting == 1 else 'wait'}" if waiting else "nothing waits"
    return f"{runs}, {waits}"


def _ticks(axis: Axis, zone: str) -> list[tuple[float, str]]:
    step = (axis.until - axis.since) // TICKS
    day = axis.until - axis.since > DAY
    instants = [axis.since + step * place for place in range(TICKS + 1)]
    return [(axis.x(at), f"{local(at, zone):%a %H:%M}" if day else f"{local(at, zone):%H:%M}") for at in instants]


def _other(name: str, step: int) -> str:
    names = list(SPANS)
    return names[min(max(names.index(name) + step, 0), len(names) - 1)]


def _links(name: str, by: str, axis: Axis, given: Instant | None, label: str) -> dict[str, Any]:
    """The addresses of other spans, lanes and times."""
    half = (axis.until - axis.since) // 2
    label = by if by.startswith("label:") else label
    lanes = [*LANES[:2], *([label] if label else []), *LANES[2:]]
    return {
        "by": by,
        "spans": [(each, _link(each, by, given), each == name) for each in SPANS],
        "kinds": [(each.partition(":")[0], _link(name, each, given), each == by, each) for each in lanes],
        "choose": _link(name, by, given) + "&run=",
        "before": _link(name, by, axis.since - half),
        "after": _link(name, by, axis.since + half),
        "wider": _link(_other(name, 1), by, None),
        "closer": _link(_other(name, -1), by, None),
        "present": _link(name, by, None),
    }


def _link(name: str, by: str, at: Instant | None) -> str:
    return address("/timeline", span=name, by=by, at=None if at is None else utc_text(at))


def _wait_of(run: Run, now: Instant) -> str:
    if is_waiting(run):
        return "asks a person"
    return f"waits {span(now - run.due_at)}" if run.due_at < now else f"begins {relative(run.due_at, now)}"


def _until(going: Sequence[Run], usual: dict[str, Instant], now: Instant) -> list[dict[str, Any]]:
    """What runs, by its expected end; then what waits, by job."""
    rows: list[dict[str, Any]] = []
    for run in going:
        usually = usual.get(run.job or "")
        if run.state in GOING and run.started_at is not None:
            ends = None if usually is None else run.started_at + usually
            rows.append({"run": run, "count": 1, "mark": RUNNING, "for": span(max(now - run.started_at, 0)),
                         "usual": usually, "ends": ends, "over": ends is not None and ends < now})  # fmt: skip
    rows.sort(key=lambda row: (row["ends"] is None, row["ends"] or 0))
    waits = Counter(run.job or run.queue for run in going if run.state is State.PENDING)
    for name, count in waits.most_common():
        oldest = min((run for run in going if run.state is State.PENDING and (run.job or run.queue) == name),
                     key=lambda run: run.due_at)  # fmt: skip
        rows.append({"run": oldest, "count": count, "for": _wait_of(oldest, now), "mark": mark_of(oldest, now),
                     "usual": usual.get(oldest.job or ""), "ends": None, "over": False})  # fmt: skip
    return rows[:LISTED_MAX]
