"""What a job's overlap policy allows, worked out a second time: which of its runs may be there beside each other, may
be claimed, may be at work at one time, which fire times may be skipped, and which runs may be ended for a newer one.

The books tell of every run as it is added, changed and taken out. Violations are derived here from observed writes, in
other words than the rule's, without shared code. A run that a person asked for may have been decided a moment before
its job was edited, and written a moment after that; there both policies are right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from horarium.clock import DAY, SECOND
from horarium.model import (
    BUS_QUEUES,
    CLAIMED,
    EXTERNAL,
    UNFINISHED,
    Cause,
    Disposition,
    EventKind,
    Job,
    Run,
    State,
    awaits_worker,
)
from horarium.policies import Overlap
from horarium.testing.simulate.owed_ends import OwedEnds
from horarium.testing.simulate.trace import Trace

WRITING = 4 * SECOND
"""How long before its write a change may have been decided."""
MOVED = "moved from "
"""What the history of a run says last that a change of its job has taken to another queue."""
ROOM = {Overlap.SKIP: 1, Overlap.BUFFER_ONE: 2, Overlap.BUFFER_ALL: 1_000}
"""How many unfinished runs there may be, a new one among them."""
ENDING = (Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER)
IN_TURN = (Overlap.BUFFER_ONE, Overlap.BUFFER_ALL, *ENDING)
PLANNED = (Cause.SCHEDULE, Cause.CATCH_UP)
SAID: dict[Disposition, str | tuple[str, ...]] = {
    Disposition.MISSED: ("catch_up: ", "after: ", "the job was deleted before it was decided "),
    Disposition.SKIPPED_OVERLAP: "overlap: ",
    Disposition.SKIPPED_PAUSED: "paused: ",
    Disposition.HELD: ("held by ", "a hold lay over it when it was changed"),
    Disposition.SKIPPED_OVERRIDE: "skipped by ",
    Disposition.REJECTED: "rejected by ",
    Disposition.APPROVAL_EXPIRED: "no decision until ",
}
"""How the reason of a skipped fire time begins."""
ENDED_FOR = "; the next fire time came"
STARTS_WITHIN = 12 * SECOND
"""How long a run may wait, in the calm, that nothing holds back, and before which no other of its queue is claimed."""

Claim = tuple[str, int]


class Overlaps:
    """The books. `runs`: every run that ever was; `unfinished`: of each job those that have not ended. `order`: the
    writes at which runs were made, and of each job the last of these."""

    def __init__(self, trace: Trace, runs: Mapping[str, Run], unfinished: Mapping[str, Mapping[str, Run]]) -> None:
        self._trace = trace
        self._runs = runs
        self._unfinished = unfinished
        self.jobs: dict[str, Job] = {}
        self._edited_at: dict[str, int] = {}
        self._policies: dict[str, Overlap] = {}
        self.order: dict[str, int] = {}
        self.owed = OwedEnds(trace)
        self._left: dict[str, list[tuple[int, Run]]] = defaultdict(list)
        self._moved_at: dict[str, int] = {}
        self._made_way: dict[str, int] = {}
        self._came_over: dict[str, None] = {}
        self._at_work: dict[Claim, None] = {}
        self._skipped: list[tuple[int, Run, Job]] = []
        self._ready_since: dict[str, int] = {}

    # ---- what happens

    def job_written(self, old: Job | None, new: Job) -> None:
        """A job was written."""
        self._check_all_skipped()
        self.jobs[new.id] = new
        if old is None or old.updated_at != new.updated_at:
            self._edited_at[new.id] = self._trace.elapsed

    def added(self, run: Run) -> None:
        """A run was added, new or in another queue than before."""
        job = self.jobs.get(run.job_id or "")
        if job is None:
            return
        moved = move_of(run)
        if run.id in self.order and moved:
            if run.queue == EXTERNAL or moved.startswith("moved from external "):
                self._policies[run.id] = job.overlap if job.overlap in IN_TURN else Overlap.ALLOW
                self._came_over[run.id] = None
            return
        if run.state is State.SKIPPED:
            self._skipped.append((self._trace.elapsed, run, job))
            return
        self.order[run.id] = self.order[job.id] = self._trace.writes
        self._policies.pop(run.id, None)
        self._came_over.pop(run.id, None)
        if run.cause is Cause.PING:  # it is written beside the job: a plan that is on its way knows nothing of it
            self._moved_at[run.id] = self._trace.elapsed
        if run.state is State.CANCELLED:
            self._made_way[run.id] = self._trace.elapsed
        elif self._is_sure(run, job) and run.cause is not Cause.PING:
            self._policies[run.id] = job.overlap
            self._check_room(run, job)
            self._check_others_end(run, job)

    def changed(self, old: Run, new: Run) -> None:
        """A run was written."""
        if old.token != new.token:  # a decision brings a new one, and a write that knew the old one is void
            self._moved_at[new.id] = self._trace.elapsed
        if old.job_id is None or (old.state is new.state and awaits_worker(old) == awaits_worker(new)):
            return
        self._left[old.job_id].append((self._trace.elapsed, old))
        self._check_all_skipped()
        self._moved_at[new.id] = self._trace.elapsed
        if new.state is State.RUNNING and old.state is not State.RUNNING:
            self._check_claim(new)
            behind = [run_id for run_id in self._ready_since if _goes_first(new, self._runs[run_id])]
            self._ready_since.update(dict.fromkeys(behind, self._trace.elapsed))
        said = (new.error if new.state is State.CANCELLED else new.history[-1].message if new.history else None) or ""
        if new.state in (State.CANCELLING, State.CANCELLED) and old.state is not State.CANCELLING:
            self._check_ended(new, said)

    def begins(self, run_id: str, token: int) -> None:
        """A handler begins: beside it, no other may be at work under a claim that holds as well, if the policy of both
        says so, or their concurrency key is full. One whose claim is lost is no more than a node that does not know."""
        self._at_work[run_id, token] = None
        run = self._runs.get(run_id)
        if run is None or not self._holds(run_id, token):
            return
        others = [self._runs[other] for other, held in self._at_work if other != run_id and self._holds(other, held)]
        policy = self._policies.get(run_id, Overlap.ALLOW)
        for other in others:
            alike = other.job_id == run.job_id and self._policies.get(other.id) is policy
            if run.job_id is not None and alike and policy is not Overlap.ALLOW:
                self._trace.fail(f"run {run_id} begins under overlap {policy} while {other.id} is at work")
        sharing = [run, *(other for other in others if other.concurrency_key == run.concurrency_key)]
        # Runs of several jobs may share a key, each with a limit of its own, which is looked at when it is claimed.
        if run.concurrency_key is not None and len(sharing) > max(each.concurrency_max for each in sharing):
            self._trace.fail(f"run {run_id} begins as number {len(sharing)} under {run.concurrency_key}")

    def ends(self, run_id: str, token: int) -> None:
        """A handler has returned, or was given up."""
        self._at_work.pop((run_id, token), None)

    # ---- checks in the calm, and in the end

    def look_for_late(self, now: int) -> None:
        """In the calm, once in a while: what nothing holds back is begun soon, a buffered run among them."""
        ready = {run.id: run for runs in self._unfinished.values() for run in runs.values() if self._is_ready(run, now)}
        self._ready_since = {run_id: self._ready_since.get(run_id, self._trace.elapsed) for run_id in ready}
        for run_id, since in self._ready_since.items():
            if self._trace.elapsed - since > STARTS_WITHIN:
                waited = (self._trace.elapsed - since) / SECOND
                self._trace.fail(f"run {run_id} in {ready[run_id].queue} waits for {waited:.1f} s, and for nothing")

    def check(self) -> None:
        """At the end: a run that was ended for a newer one has it. Where the clock went back, which one is newer is not
        sure."""
        self.owed.check()
        self._check_made_way(self._trace.elapsed + 1)

    # ---- each rule

    def _is_sure(self, run: Run, job: Job) -> bool:
        """Whether it was decided under the policy that its job has now."""
        edited = self._edited_at.get(job.id, 0)
        settled = self._trace.elapsed > edited + WRITING and not self._trace.was_held_up
        return run.cause in PLANNED or settled

    def _check_all_skipped(self) -> None:
        """Once a plan is written: what it skips is written before what it makes, and what it owes comes last."""
        self.owed.check()
        self._check_made_way(self._trace.elapsed)
        for at, run, job in self._skipped:
            self._check_skipped(at, run, job)
        self._skipped.clear()

    def _check_made_way(self, until: int) -> None:
        """A run that was ended before that for a newer one has it. Runs are made after those are ended that they take
        the place of, in one write. Where the clock went back, which one is newer is not sure; where it stepped, only in
        the end."""
        if self._trace.clock_stepped and until <= self._trace.elapsed:
            return
        ended = [run_id for run_id, at in self._made_way.items() if at < until]
        for run_id in ended:
            del self._made_way[run_id]
            run = self._runs.get(run_id)
            if run is not None and not self._trace.clock_went_back and self._is_newest(run):
                self._trace.fail(f"run {run_id} was ended for a newer one, and there was none")

    def _is_newest(self, run: Run) -> bool:
        """Whether no run of its job was made after it, one that was withdrawn since among them; nor says so of itself,
        by the clock of a node that is ahead."""
        alike = (other for other in self._runs.values() if other.job_id == run.job_id and other.id in self.order)
        ahead = any(other.created_at > run.created_at for other in alike)
        return self.order[run.job_id or ""] <= self.order[run.id] and not ahead

    def _check_skipped(self, at: int, run: Run, job: Job) -> None:
        """A skipped fire time says why, and that was so."""
        begins = SAID.get(run.disposition or Disposition.RAN)
        said = run.error or ""
        if begins is None or not said.startswith(begins) or said == begins or run.finished_at is None:
            self._trace.fail(f"run {run.id} was skipped ({run.disposition}) without a reason: {said!r}")
        elif not run.history or said not in run.history[-1].message:
            self._trace.fail(f"run {run.id} was skipped, and its history does not say why")
        elif run.disposition is Disposition.SKIPPED_OVERLAP and self._is_sure(run, job):
            if not said.startswith(f"overlap: {job.overlap}; "):
                self._trace.fail(f"run {run.id} was skipped ({said}) though its job's policy is {job.overlap}")
            elif self._tells_of_room(run, job) and not self._was_full(job, at):
                self._trace.fail(f"run {run.id} was skipped ({said}) though there was room")

    def _tells_of_room(self, run: Run, job: Job) -> bool:
        """Not in a future that is wrong: the clock may have been there before, and rows from then take places."""
        is_wrong = run.fire_at > self._trace.true + DAY
        return job.overlap not in ENDING and not self._trace.was_held_up and not is_wrong

    def _was_full(self, job: Job, at: int) -> bool:
        """Whether, as far as one could know within the time that a write may take, there was no room for one more."""
        lately = [run for left_at, run in self._left[job.id] if left_at >= at - WRITING]
        seen = [*self._unfinished.get(job.id, {}).values(), *lately]
        count = len({run.id for run in seen if run.state in UNFINISHED})
        pending = len({run.id for run in seen if _is_pending(run)})
        full = count >= ROOM.get(job.overlap, count + 1)
        return full or (job.buffer_max is not None and pending >= job.buffer_max)

    def _check_room(self, run: Run, job: Job) -> None:
        back = _decided(self._trace, run)
        others = [
            other
            for other in self._unfinished[job.id].values()
            # What a ping says has happened, also where a plan that is just being written did not know of it.
            if other.id != run.id and not (other.cause is Cause.PING and self._moved_at.get(other.id, back) > back)
        ]
        if len(others) >= ROOM.get(job.overlap, len(others) + 1):
            beside = [other.id for other in others]
            self._trace.fail(f"run {run.id} was made under overlap {job.overlap} beside {beside}")
        pending = [other for other in others if _is_pending(other) and self._moved_at.get(other.id, back) <= back]
        if job.overlap not in ENDING and job.buffer_max is not None and len(pending) >= job.buffer_max:
            self._trace.fail(f"run {run.id} was made beside {len(pending)} pending ones: buffer_max {job.buffer_max}")

    def _check_others_end(self, run: Run, job: Job) -> None:
        """A run under a policy that ends others comes with the end of all that are there, but for those that a claim,
        or their way back from one, has changed since they were read: these are looked at after it."""
        back = _decided(self._trace, run)
        for other in self._unfinished[job.id].values() if job.overlap in ENDING else ():
            told = other.state is State.CANCELLING and job.overlap is Overlap.CANCEL_OTHER
            just_moved = self._moved_at.get(other.id, back) > back or self._trace.was_held_up
            if other.id != run.id and not told and not just_moved:
                said = f"run {run.id} was made under {job.overlap} while {other.id} goes on: {other.state}"
                self.owed.doubt(job.id, said)

    def _check_claim(self, run: Run) -> None:
        """A run that waits for its turn is claimed when no other run of its job is, and none that was there before
        waits. The run's own mark that it takes turns is not looked at."""
        policy = self._policies.get(run.id)
        if policy not in IN_TURN or run.queue == EXTERNAL:
            return
        # A run made for work elsewhere, under any policy, has ended no other.
        ends_others = policy in ENDING and run.id not in self._came_over and not self._trace.clock_stepped
        ends_others = ends_others and not self.owed.of(run.job_id or "")
        back = self._trace.elapsed - WRITING
        for other in self._unfinished.get(run.job_id or "", {}).values():
            if other.id == run.id:
                continue
            # One of a later fire time that has just come back from a claim is yet to be looked at, and waits its turn.
            if (
                other.fire_at > run.fire_at
                and other.state is State.PENDING
                and self._moved_at.get(other.id, back) > back
            ):
                continue
            earlier = self.order[other.id] < self.order[run.id] and self._policies.get(other.id) is policy
            if other.state in CLAIMED and other.queue != EXTERNAL:
                self._trace.fail(f"run {run.id}, {policy}, was claimed while {other.id} is {other.state}")
            elif other.state is State.PENDING and earlier and ends_others:
                self._trace.fail(f"run {run.id}, {policy}, was claimed, and {other.id} was not asked to stop before")

    def _check_ended(self, run: Run, said: str) -> None:
        job = self.jobs.get(run.job_id or "")
        if job is None or not said.endswith(ENDED_FOR):
            return
        self._made_way[run.id] = self._trace.elapsed
        settled = self._trace.elapsed > self._edited_at.get(job.id, 0) + WRITING and not self._trace.was_held_up
        if settled and job.overlap not in ENDING:
            self._trace.fail(f"run {run.id} was ended ({said}) though its job's policy is {job.overlap}")

    def _holds(self, run_id: str, token: int) -> bool:
        run = self._runs.get(run_id)
        return run is not None and run.token == token and run.state in CLAIMED

    def _is_ready(self, run: Run, now: int) -> bool:
        if run.state is not State.PENDING or run.due_at > now or run.queue.startswith(BUS_QUEUES):
            return False
        if run.queue == EXTERNAL or run.concurrency_key is not None or run.job_id is None:
            return False
        others = [other for other in self._unfinished[run.job_id].values() if run.serial and other.id != run.id]
        return not any(other.state in CLAIMED or (other.fire_at, other.id) < (run.fire_at, run.id) for other in others)


def _goes_first(claimed: Run, waiting: Run) -> bool:
    """Whether a claim of their queue takes this run before that one."""
    order = [(-run.priority, run.due_at) for run in (claimed, waiting)]
    return claimed.queue == waiting.queue and order[0] <= order[1]


def _decided(trace: Trace, run: Run) -> int:
    """Before this the decision to make this new run knew each change of others: as its row says, many that were asked
    for together are written when the last of them is looked at."""
    return trace.elapsed - max(WRITING, trace.wall - run.created_at)


def move_of(run: Run) -> str:
    """What its history says last, if that is of its move to another queue (it may be asked about there), or ""."""
    last = run.history[-1:]
    lines = run.history[-3:] if last and last[0].kind is EventKind.ASKED else last
    return next((line.message for line in lines if line.message.startswith(MOVED)), "")


def _is_pending(run: Run) -> bool:
    return run.state is State.PENDING or awaits_worker(run)
