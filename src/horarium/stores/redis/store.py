"""`ports.Store` over one Redis or Valkey.

Every method is one script, called once for at most a thousand items or four mebibytes, so that no call holds the
server up for long. A script is the transaction: Redis carries it out as a whole and alone. A namespace is a prefix with
a hash tag: all of its keys live in one slot of a cluster. The instance keeps nothing of the data.

How durable an answered write is depends on the server's settings: see docs/redis.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any
from urllib.parse import quote

import msgspec

from horarium.clock import Instant
from horarium.errors import InvalidSetting
from horarium.model import NODES_KEPT, Health, Job, Level, Node, Plan, Run, RunChange, State, Whole
from horarium.model.records import Record, RecordChange, RecordFilter
from horarium.ports import (
    BATCH_MAX,
    NOTHING_ALONG,
    PAGE_MAX,
    Along,
    Beat,
    Claimed,
    JobFilter,
    Page,
    Pulse,
    QueueStats,
    RunFilter,
    Stats,
)
from horarium.stores.batches import CALL_BYTES_MAX, weighed_parts
from horarium.stores.counting import counted
from horarium.stores.encoding import STATE_NUMBERS, as_written, record_bounds
from horarium.stores.listing import ahead_after, ahead_cursor, id_bounds, newest_of
from horarium.stores.migrations import unreleased
from horarium.stores.redis import health
from horarium.stores.redis.listing import SCAN_STRETCH, list_jobs
from horarium.stores.redis.loading import decode_jobs, due_of, found_all, jobs_of, runs_of
from horarium.stores.redis.location import parse_url
from horarium.stores.redis.parts import (
    ends_of_call,
    kinds_of_call,
    parts,
    weight_of_beat,
    weight_of_change,
    weight_of_plan,
    weight_of_record_change,
    weight_of_run,
)
from horarium.stores.redis.rows import (
    Arguments,
    claimed_runs,
    come_along,
    decode_job,
    decode_record,
    encode_job,
    found_runs,
    kind_of_end,
    label_texts,
    new_run,
    pack,
    pack_all,
    run_change,
)
from horarium.stores.redis.server import Server
from horarium.stores.redis.unfinished import unfinished_runs
from horarium.stores.redis.writing import ids_of, plan_values, record_change, replace_runs, swept_by, whole_values
from horarium.stores.wakeups import Written

log = logging.getLogger("horarium.redis")

LAYOUT = 2
"""The version of the keys and rows. A store of another version is refused."""
RUN_STRETCH = 500
"""How many runs a list looks at in one call, after the first one."""
LOOKS_MAX = 2_000
"""How many runs a list looks at for a page, and a stretch more."""
PRUNED_AT_ONCE = 125
"""How many runs one call deletes: each is in some ten indexes."""
QUEUES_AT_ONCE = 200
"""Of how many queues the runs are counted in one call."""
NAMES_AT_ONCE = 100
"""Of how many jobs the newest runs are read in one call."""

_id_of_change = attrgetter("run.id")


def _by_job(change: RunChange) -> tuple[str, str]:
    return change.run.job_id or "", change.run.id


_encode_node = msgspec.json.Encoder().encode
_decode_node = msgspec.json.Decoder(Node).decode


class RedisStore:
    """A store in Redis or Valkey. For its methods see `ports.Store`; for the forms of `url`, `location.parse_url`."""

    def __init__(self, url: str, namespace: str = "default") -> None:
        self.namespace = namespace
        self._prefix = f"horarium:{{{quote(namespace, safe='')}}}:".encode()
        self._server = Server(parse_url(url))
        self.written = Written()

    async def open(self) -> None:
        try:
            # First the call that finds the node of a cluster that has our slot: the settings of that node count.
            await self._check_layout()
            await self._check_settings()
        except BaseException:
            await self._server.close()
            raise

    async def close(self) -> None:
        await self._server.close()

    async def check(self) -> None:
        await self._write("check")

    async def _read(self, name: str, *arguments: Any) -> Any:
        return await self._server.read(name, self._prefix, *arguments)

    async def _write(self, name: str, *arguments: Any) -> Any:
        return await self._server.write(name, self._prefix, *arguments)

    # -- opening

    async def _check_settings(self) -> None:
        info = _info(await self._server.command("INFO"))
        where = self._server.location.shown
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise InvalidSetting(
                f"store: Redis at {where} forgets keys when its memory is full (maxmemory-policy {policy}): jobs would "
                "be lost; set maxmemory-policy to noeviction",
                field="store",
            )
        if info.get("aof_enabled") == "0":
            log.warning(
                "Redis at %s keeps no append-only file: a crash or restart loses what was written since its last "
                "snapshot, or everything if it makes none; set appendonly yes",
                where,
            )

    async def _check_layout(self) -> None:
        found = int(await self._write("open_namespace", LAYOUT))
        if found != LAYOUT:
            shown = f"store: namespace {self.namespace!r} of Redis at {self._server.location.shown}"
            if found < LAYOUT:
                raise InvalidSetting(unreleased(shown), field="store")
            why = f"has layout {found}, this Horarium knows {LAYOUT}; upgrade Horarium, or give another namespace"
            raise InvalidSetting(f"{shown} {why}", field="store")

    # -- jobs

    async def add_jobs(self, jobs: Sequence[Job], along: Along = NOTHING_ALONG) -> list[bool]:
        answers: list[bool] = []
        rows = [(job, encode_job(job, job.version)) for job in jobs]
        for part in weighed_parts(rows, lambda pair: (1, len(pair[1]))):
            arguments = Arguments(before=2)
            batch: list[Any] = []
            for job, text in part:
                row = arguments.place(text)
                batch += (job.id, row, come_along((), along.get(job.id, ()), arguments), *swept_by(job))
            answers.extend(map(bool, await self._write("add_jobs", len(part), pack_all(batch), *arguments.values)))
        return answers

    async def get_jobs(self, names: Sequence[str]) -> list[Job | None]:
        return await jobs_of(self._read, "get_jobs", names)

    async def get_jobs_by_id(self, ids: Sequence[str]) -> list[Job | None]:
        return await jobs_of(self._read, "get_jobs_by_id", ids)

    async def list_jobs(self, where: JobFilter, after: str | None, limit: int) -> Page[Job]:
        return await list_jobs(self._read, where, after, limit)

    async def jobs_ahead(self, until: Instant, after: str | None, limit: int) -> Page[Job]:
        at, behind = (until + 1, "") if after is None else ahead_cursor(after)
        rows, last_at, last_id = await self._read("jobs_ahead", at, behind, min(limit, PAGE_MAX))
        jobs = (job for job in decode_jobs(rows) if job is not None)
        return Page(tuple(jobs), None if last_id is None else ahead_after(int(float(last_at)), last_id.decode()))

    async def jobs_trimmed(self, after: str | None, limit: int) -> Page[Job]:
        bound = "-" if after is None else f"({after}"
        rows, last = await self._read("jobs_trimmed", bound, min(limit, PAGE_MAX))
        jobs = (job for job in decode_jobs(rows) if job is not None)
        return Page(tuple(jobs), None if last is None else last.decode())

    async def job_health(self, job_ids: Sequence[str]) -> dict[str, Health]:
        return await health.job_health(self._read, job_ids)

    async def failing_jobs(self, limit: int) -> dict[str, Health]:
        return await health.failing_jobs(self._read, limit)

    async def add_health(self, health_: Mapping[str, Health]) -> None:
        await health.add_health(self._write, health_)

    async def due_jobs(
        self, until: Instant, limit: int, after: Instant | None = None
    ) -> tuple[list[Job], Instant | None]:
        bound = "-inf" if after is None else f"({after}"
        rows, beyond, left = await self._read("due_jobs", until, min(limit, BATCH_MAX), bound)
        next_at = None if beyond is None else int(float(beyond))
        return await due_of(self._read, [decode_job(row) for row in rows], left, until, next_at)

    async def commit_plans(self, plans: Sequence[Plan], steady: Instant) -> list[bool]:
        answers: list[bool] = []
        for part in weighed_parts(plans, weight_of_plan):
            arguments = Arguments(before=4)
            batch = [value for plan in part for value in plan_values(plan, arguments, steady)]
            ids = [run_id for plan in part for run_id in ids_of(plan)]
            job_ids = [plan.job.id for plan in part]
            values = (steady, pack_all(job_ids), pack_all(ids), pack_all(batch), *arguments.values)
            answers.extend(map(bool, await self._write("commit_plans", *values)))
        return answers

    async def write_whole(self, whole: Whole, steady: Instant) -> bool:
        return bool(await self._write("write_whole", *whole_values(whole, steady)))

    # -- runs

    async def add_runs(self, runs: Sequence[Run], along: Along = NOTHING_ALONG) -> list[bool]:
        answers: list[bool] = []
        for part in weighed_parts(runs, weight_of_run):
            arguments = Arguments(before=2)
            batch: list[Any] = []
            for run in part:
                batch += (*new_run(run, arguments), come_along((), along.get(run.id, ()), arguments))
            ids = pack_all([run.id for run in part])
            answers.extend(map(bool, await self._write("add_runs", ids, pack_all(batch), *arguments.values)))
        return answers

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        return [run for part in parts(ids) for run in await runs_of(self._read, part)]

    async def get_run_by_key(self, unique_key: str) -> Run | None:
        run_id, loaded = await self._read("run_by_key", unique_key)
        return None if run_id is None else found_runs([run_id], loaded)[0]

    async def unfinished_runs(self, job_ids: Sequence[str]) -> dict[str, list[Run]]:
        return await unfinished_runs(self._read, job_ids)

    async def list_runs(self, where: RunFilter, after: str | None, limit: int) -> Page[Run]:
        states = {str(STATE_NUMBERS[state]): True for state in where.states or State}
        lowest, upto = id_bounds(where, after)
        least, below = "-" if lowest is None else f"[{lowest}", "+" if upto is None else f"({upto}"
        found: list[Run] = []
        looked_at, stretch, frontier = 0, limit + 1, b""
        while len(found) <= limit and looked_at < LOOKS_MAX:
            filters = where.job, states, where.queue, where.since, where.until
            asked = (below, least, limit + 1 - len(found), stretch, *filters)
            ids, frontier, loaded = await self._read("list_runs", pack(asked))
            found += found_runs(ids, loaded)
            if not frontier:
                break
            looked_at, below, stretch = looked_at + stretch, f"({frontier.decode()}", RUN_STRETCH
        if len(found) > limit > 0:
            return Page(tuple(found[:limit]), found[limit - 1].id)
        return Page(tuple(found[:limit]), frontier.decode() or None if limit > 0 else None)

    async def last_runs(self, jobs: Sequence[str], since: Instant, until: Instant, limit: int) -> dict[str, list[Run]]:
        lowest, below = id_bounds(RunFilter(since=since, until=until), None)
        found: list[Run] = []
        for part in parts(list(dict.fromkeys(jobs)), NAMES_AT_ONCE):
            ids, loaded = await self._read("last_runs", pack((f"({below}", f"[{lowest}", limit)), *part)
            found += await found_all(self._read, ids, loaded)
        return newest_of(jobs, found, limit)

    async def claim_runs(
        self, queues: Sequence[str], limit: int, worker: str, now: Instant, until: Instant, steady: Instant
    ) -> Claimed:
        if not queues:
            return Claimed()
        asked = (now, until, min(limit, BATCH_MAX), CALL_BYTES_MAX, worker, steady - now, *sorted(set(queues)))
        next_due_at, count, texts, loaded, job_ids, rows = await self._write("claim_runs", *asked)
        jobs = {job_id.decode(): decode_job(row) for job_id, row in zip(job_ids, rows, strict=True) if row is not None}
        return Claimed(tuple(claimed_runs(count, texts, loaded)), jobs, int(next_due_at) if next_due_at else None)

    async def first_due(self, levels: Sequence[Level]) -> list[Instant | None]:
        given = (
            value for queue, priority, gated in levels for value in ("gated" if gated else "lane", priority, queue)
        )
        return [int(float(at)) if at else None for at in await self._read("first_due", *given)] if levels else []

    async def settle_runs(self, changes: Sequence[RunChange], steady: Instant) -> list[bool]:
        if changes and changes[0].replaces:
            return await replace_runs(self._write, changes)
        changes = as_written(changes, steady)
        answers: list[bool] = []
        for part in parts(changes, ends_of_call(changes)):
            if kinds := kinds_of_call(part):
                answers += await self._settle_kinds(part, kinds, steady)
                continue
            for some in weighed_parts(part, weight_of_change):
                arguments = Arguments(before=3)
                batch = [value for change in some for value in run_change(change, arguments)]
                ids = pack_all([change.run.id for change in some])
                answers += map(bool, await self._write("settle_runs", steady, ids, pack_all(batch), *arguments.values))
        return answers

    async def _settle_kinds(
        self, changes: Sequence[RunChange], kinds: Sequence[Sequence[RunChange]], steady: Instant
    ) -> list[bool]:
        arguments = Arguments(before=3)
        # Runs of one job are more alike than others, and what lies together in an index leaves it together.
        in_turn = _by_job if any(change.run.job_id for change in changes) else _id_of_change
        ids = [change.run.id for kind in kinds for change in sorted(kind, key=in_turn)]
        batch = [value for kind in kinds for value in kind_of_end(kind, arguments)]
        asked = (steady, pack_all(ids), pack_all(batch), *arguments.values)
        places = await self._write("settle_kinds", *asked)
        if not places:
            return [True] * len(ids)
        refused = {ids[place] for place in places}
        return [change.run.id not in refused for change in changes]

    async def heartbeat_runs(self, beats: Sequence[Beat], steady: Instant) -> list[Pulse | None]:
        pulses: list[Pulse | None] = []
        for part in weighed_parts(beats, weight_of_beat):
            arguments = Arguments(before=3)
            batch = [value for beat in part for value in (beat.token, arguments.place_or_none(beat.progress))]
            ids = pack_all([beat.run_id for beat in part])
            answers = await self._write("heartbeat_runs", steady, ids, pack_all(batch), *arguments.values)
            pulses += (None if answer is None else Pulse(int(answer[0]), bool(answer[1])) for answer in answers)
        return pulses

    async def overdue_runs(self, now: Instant, limit: int, steady: Instant) -> tuple[list[Run], Instant | None]:
        ids, loaded, ahead = await self._read("overdue_runs", now, min(limit, BATCH_MAX), steady - now)
        return await found_all(self._read, ids, loaded), None if ahead is None else int(ahead)

    async def prune_runs(self, now: Instant, limit: int) -> int:
        return await self._in_steps(min(limit, BATCH_MAX), "prune_runs", now)

    async def trim_runs(self, job_id: str, keep: int, limit: int) -> int:
        return await self._in_steps(min(limit, BATCH_MAX), "trim_runs", job_id, keep)

    async def _in_steps(self, limit: int, name: str, *arguments: Any) -> int:
        """How many runs this script deleted in all, asked again until it finds no more, or `limit` are gone."""
        pruned = step = found = 0
        while pruned < limit and found == step:
            step = min(PRUNED_AT_ONCE, limit - pruned)
            found = int(await self._write(name, *arguments, step))
            pruned += found
        return pruned

    # -- records

    async def get_records(self, names: Sequence[str]) -> list[Record | None]:
        found: list[Record | None] = []
        while left := names[len(found) : len(found) + BATCH_MAX]:
            rows = await self._read("get_records", *left)
            found += (None if row is None else decode_record(name, row) for name, row in zip(left, rows, strict=False))
        return found

    async def list_records(self, where: RecordFilter, after: str | None, limit: int) -> Page[Record]:
        found: list[Record] = []
        stretch = limit + 1
        while len(found) <= limit:
            lower, upper = record_bounds(where, after)
            asked = (b"[" + lower, b"(" + upper, int(where.descending), stretch, *label_texts(where.labels))
            names, rows, last = await self._read("list_records", *asked)
            found += (decode_record(name.decode(), row) for name, row in zip(names, rows, strict=True))
            if not last:
                break
            after, stretch = last.decode(), SCAN_STRETCH
        more = len(found) > limit > 0
        return Page(tuple(found[:limit]), found[limit - 1].name if more else None)

    async def put_records(self, changes: Sequence[RecordChange]) -> list[bool]:
        answers: list[bool] = []
        for part in weighed_parts(changes, weight_of_record_change):
            arguments = Arguments(before=2)
            batch = [value for change in part for value in record_change(change, arguments)]
            answers.extend(map(bool, await self._write("put_records", len(part), pack_all(batch), *arguments.values)))
        return answers

    async def prune_records(self, prefix: str, until: str, limit: int) -> int:
        lower, upper = record_bounds(RecordFilter(prefix, until=until), None)
        bound = max(0, min(limit, BATCH_MAX))
        return int(await self._write("prune_records", b"[" + lower, b"(" + upper, bound))

    # -- the rest

    async def server_time(self) -> Instant:
        """The server's time. Not in the port: `ServerClock` asks it."""
        mark = None
        try:
            now, mark = await self._server.time()
        finally:
            self.written.saw(mark)
        return now

    async def beat_node(self, node: Node) -> None:
        await self._write("beat_node", node.name, node.beat_at, _encode_node(node), node.beat_at - NODES_KEPT)

    async def list_nodes(self, since: Instant) -> list[Node]:
        nodes = map(_decode_node, await self._read("list_nodes", since))
        return sorted(nodes, key=lambda node: node.name)

    async def stats(self, now: Instant) -> Stats:
        found: list[QueueStats] = []
        bound = "-"
        while True:
            jobs, disabled, queues, last = await self._read("stats", now, bound, QUEUES_AT_ONCE)
            found += (_queue_stats(*queue) for queue in queues)
            if not last:
                return counted(jobs, jobs - disabled, found)
            bound = f"({last.decode()}"


def _info(text: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in text.decode().splitlines())
    return {name: value for name, colon, value in lines if colon}


def _queue_stats(queue: bytes, due: int, waiting: int, claimed: int, earliest: bytes | None) -> QueueStats:
    oldest = int(float(earliest)) if due and earliest is not None else None
    return QueueStats(queue.decode(), due, waiting - due, claimed, oldest)
