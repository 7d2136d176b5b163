"""The lines of the verdict: each cause in words, with the jobs concerned and the page where it is mended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from urllib.parse import quote, urlencode

from msgspec import Struct

from horarium.clock import DAY, MINUTE, SECOND, Instant, to_micros, to_text
from horarium.dashboard.formats import duration, queue_name, span
from horarium.dashboard.marks import FAILED, LATE, LOST, Mark, mark_of
from horarium.model import Health, Node, Run, State
from horarium.model.channels import Untold
from horarium.operations.deciding.acknowledging import Cause
from horarium.operations.looking.attending import (
    of_ending,
    of_failing,
    of_held,
    of_late,
    of_lost,
    of_unserved,
    of_untold,
)
from horarium.ports import QueueStats
from horarium.rules.error_lines import error_line, error_sort
from horarium.rules.holds import InForce, end_words, scope_words
from horarium.triggers.words import counted

JOBS_SHOWN_MAX = 20
QUEUES_SHOWN_MAX = 10
LAST_RUNS = 10
NAMED = 3

Link = tuple[str, str]


class Trouble(Struct, frozen=True):
    """One thing that needs attention. `kind`: failing, alike (jobs that fail with one error), late, unserved, lost,
    undelivered, held, ending (a calendar), or more (a line that stands for `stands_for` others). `error`: quoted before
    `why`. `runs`: the last ones, newest first. `retry`: a page that asks, and its button. `jobs`: links to those
    concerned. `causes`: the parts of it that can be acknowledged, one for each job that fails with the same error.
    Instants in `what` and `why` are written in UTC."""

    kind: str
    subject: str
    what: str
    why: str
    mark: Mark
    link: str
    button: str
    error: str = ""
    runs: tuple[Run, ...] = ()
    retry: Link | None = None
    jobs: tuple[Link, ...] = ()
    stands_for: int = 1
    causes: tuple[Cause, ...] = ()

    @property
    def cause(self) -> Cause | None:
        """What names it where it is acknowledged."""
        return self.causes[0] if self.causes else None


def failing_one(name: str, health: Health, runs: Sequence[Run], now: Instant) -> Trouble:
    """A job that fails. `runs`: its last ones, newest first."""
    streak, last = health.failures_in_a_row, health.last_run
    assert last is not None
    failed = next((run for run in runs if run.state is State.FAILED), None)
    since = "" if health.failing_since is None else f", since {to_text(health.failing_since)}"
    return Trouble(
        kind="failing",
        subject=name,
        what=f"failed {streak:,} in a row{since}" if streak > 1 else "failed once",
        why=f"Last {span(now - last.finished_at)} ago",
        error=error_line(last.error),
        mark=FAILED if failed is None else mark_of(failed, now),
        link=f"/jobs/{name}",
        button="Open job",
        runs=tuple(runs),
        retry=_retry(name, runs, streak),
        causes=(of_failing(name, health),),
    )


def _retry(job: str, runs: Sequence[Run], streak: int) -> Link | None:
    """Where the runs that failed in a row are retried; of more than are known here, nowhere."""
    ended = [run for run in runs if run.state in (State.COMPLETED, State.FAILED)]
    failed = list(takewhile(lambda run: run.state is State.FAILED, ended))
    if not 0 < len(failed) == streak:
        return None
    chosen = {"action": "retry", "state": "failed", "job": job, "since": to_text(min(run.fire_at for run in failed))}
    return f"/bulk-runs?{urlencode(chosen)}", "Retry" if streak == 1 else f"Retry {streak}"


def failing_alike(failing: dict[str, Health], now: Instant, *, cut: bool) -> Trouble:
    """Jobs that fail with one error, which is their common cause. `cut`: there may be more of them."""
    names = sorted(failing, key=lambda name: (-failing[name].failures_in_a_row, name))
    lasts = [health.last_run for health in failing.values() if health.last_run is not None]
    newest = max(lasts, key=lambda last: last.finished_at)
    since = min(health.failing_since or newest.finished_at for health in failing.values())
    runs = sum(health.failures_in_a_row for health in failing.values())
    lengths = (("day", DAY), ("week", 7 * DAY), ("month", 30 * DAY))
    length = next((each for each, long in lengths if now - since < long), "month")
    link = f"/failures?span={length}&open={error_sort(newest.error)}"
    return Trouble(
        kind="alike",
        subject=f"{'At least ' if cut else ''}{counted(len(names), 'job')} fail",
        what=f"with one error: {counted(runs, 'run')} since {to_text(since)}",
        why=f"Last {span(now - newest.finished_at)} ago",
        error=error_line(newest.error),
        mark=FAILED,
        link=link,
        button="Open error",
        jobs=_named(names, "/jobs?show=failing"),
        causes=tuple(of_failing(name, failing[name]) for name in names),
    )


def _named(names: Sequence[str], all_of_them: str) -> tuple[Link, ...]:
    """The first few jobs, and the others as one link."""
    shown = [(f"/jobs/{name}", name) for name in names[:NAMED]]
    more = len(names) - NAMED
    return (*shown, (all_of_them, f"and {more:,} more")) if more > 0 else tuple(shown)


def late_jobs(late: dict[str, Run], unserved: set[str], now: Instant) -> list[Trouble]:
    """Late jobs, but those of queues that no worker serves: these have a line of their own."""
    names = [name for name, run in late.items() if run.queue not in unserved]
    shown = [
        Trouble(
            kind="late",
            subject=name,
            what=f"is late by {duration(now - late[name].due_at)}, due {to_text(late[name].due_at)}",
            why=f"Its run waits in {queue_name(late[name].queue)} and no worker has taken it",
            mark=LATE,
            link=f"/runs/{late[name].id}",
            button="Open run",
            causes=(of_late(name, late[name]),),
        )
        for name in names[:JOBS_SHOWN_MAX]
    ]
    return [*shown, *and_more(len(names) - len(shown), "late", "are late", LATE)]


def and_more(others: int, kind: str, verb: str, mark: Mark, stands_for: int | None = None) -> list[Trouble]:
    """The line of those that have none of their own."""
    if others <= 0:
        return []
    what = verb if others > 1 else {"fail": "fails", "are late": "is late"}[verb]
    return [
        Trouble(
            kind="more",
            subject=f"{counted(others, 'more job')}",
            what=what,
            why="They are in the list of jobs",
            mark=mark,
            link=f"/jobs?show={kind}",
            button="Open jobs",
            stands_for=others if stands_for is None else stands_for,
        )
    ]


def undelivered(channel: str, untold: Untold, now: Instant, others: Sequence[str]) -> Trouble:
    """A channel that took no message. `others`: channels of which no such thing is known."""
    named = ", ".join(others[:NAMED]) + (f" and {len(others) - NAMED:,} more" if len(others) > NAMED else "")
    instead = f"No failure is known of {named}" if others else "No other channel is there"
    return Trouble(
        kind="undelivered",
        subject=f"Alerts to {channel}",
        what=f"can’t be delivered since {to_text(untold.since)}",
        why=f"Tried last {span(now - untold.at)} ago. {instead}",
        error=error_line(untold.error),
        mark=LATE,
        link=f"/runs/{untold.run_id}",
        button="Open run",
        retry=(f"/channels#untold-{channel}", "Send by another channel") if others else None,
        causes=(of_untold(channel, untold),),
    )


def unserved_queues(queues: Sequence[QueueStats], late: dict[str, Run], now: Instant) -> list[Trouble]:
    """Queues without a worker. `late`: the oldest late run of each job."""
    found = []
    for queue in queues[:QUEUES_SHOWN_MAX]:
        names = [name for name, run in late.items() if run.queue == queue.queue]
        whose = f", of {counted(len(names), 'late job')}" if names else ""
        begun = "" if queue.oldest_due_at is None else f"The oldest since {to_text(queue.oldest_due_at)}"
        found.append(
            Trouble(
                kind="unserved",
                subject=f"Queue {queue_name(queue.queue)}",
                what=f"has no worker: {counted(queue.due, 'run')} {'waits' if queue.due == 1 else 'wait'}{whose}",
                why=begun,
                mark=LATE,
                link=f"/queue?name={quote(queue.queue, safe='')}",
                button="Open queue",
                jobs=_named(names, f"/runs?queue={quote(queue.queue, safe='')}&state=pending"),
                causes=(of_unserved(queue, now),),
            )
        )
    if others := queues[QUEUES_SHOWN_MAX:]:
        waiting = sum(queue.due for queue in others)
        found.append(
            Trouble(
                kind="more",
                subject=counted(len(others), "more queue"),
                what="has no worker" if len(others) == 1 else "have no worker",
                why=f"{counted(waiting, 'run')} {'waits' if waiting == 1 else 'wait'} there",
                mark=LATE,
                link="/queues",
                button="Open queues",
                stands_for=len(others),
            )
        )
    return found


def held(found: InForce) -> Trouble:
    """What a hold lies over; a circuit breaker's is a host that is down."""
    probing, begun = found.hold.probing, to_text(found.stretch.begins_at)
    if probing is None:
        subject, what = f"On hold: {scope_words(found.hold.scope)}", f"nothing of it begins until {end_words(found[1])}"
    else:
        every = to_micros(probing.seconds)
        each = {SECOND: "a second", MINUTE: "a minute"}.get(every, f"each {duration(every)}")
        subject, what = f"{found.hold.scope.host}", f"is down since {begun}: calls are held, one probe {each}"
    return Trouble(
        kind="held",
        subject=subject,
        what=what,
        why=found.hold.reason,
        mark=LATE if probing is None else LOST,
        link="/holds",
        button="Open hold",
        causes=(of_held(found),),
    )


def ending(name: str, day: str) -> Trouble:
    """A calendar that knows few days more."""
    return Trouble(
        kind="ending",
        subject=f"Calendar {name}",
        what=f"knows its days until {day}",
        why="Beyond that day only its weekend counts",
        mark=LATE,
        link=f"/business-days/{name}",
        button="Open calendar",
        causes=(of_ending(name, day),),
    )


def lost(nodes: Sequence[Node], now: Instant) -> list[Trouble]:
    """Nodes without a sign of life."""
    return [
        Trouble(
            kind="lost",
            subject=f"Node {node.name}",
            what=f"gave its last sign {span(now - node.beat_at)} ago",
            why="Its claimed runs go to others once their leases have run out",
            mark=LOST,
            link="/nodes",
            button="Open nodes",
            causes=(of_lost(node),),
        )
        for node in nodes
    ]


def counts_by_kind(troubles: Sequence[Trouble]) -> Counter[str]:
    """How many lines there are of each kind; those of jobs that fail are one for each error."""
    kinds: Counter[str] = Counter()
    for trouble in troubles:
        kinds["errors" if trouble.mark.symbol == FAILED.symbol else trouble.kind] += trouble.stands_for
    return kinds
