"""What the processes of one server tell each other, with the supervisor's relay and real lines, in one event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from horarium.access.audit import Origin
from horarium.access.keys import Key, Keys, digest_of, new_token
from horarium.access.roles import LOCAL, Role
from horarium.access.sessions import Sessions
from horarium.api.refused import RefusalLog
from horarium.api.sign_ins import FREE_FAILURES, SignIns
from horarium.clock import to_instant
from horarium.errors import Forbidden
from horarium.model.records import RecordFilter
from horarium.node.backends import make_store
from horarium.ports import Stats
from horarium.server import cpus
from horarium.server.child import Family
from horarium.server.crowd import Crowd, make_table
from horarium.server.http import Accepting
from horarium.server.line import UNREAD_BYTES_MAX, Message, MessagePipe, open_line
from horarium.server.supervisor import AGAIN_SECONDS_MAX, STEADY_SECONDS, Process, Relay
from horarium.services.metrics.scrapes import add_up, counts_of
from horarium.services.polling.news import News
from horarium.stores.wakeups import LocalSignal
from horarium.testing import ManualClock
from tests.waiting import until

START = to_instant(datetime(2026, 1, 1, tzinfo=UTC))


def nothing() -> None:
    """No one waits for the end of a line."""


class Linked:
    """Processes of one server, as far as what they say to each other goes."""

    def __init__(self, processes: Sequence[Process], families: Sequence[Family], relay: Relay) -> None:
        self.processes = processes
        self.families = families
        self.relay = relay


@asynccontextmanager
async def linked(count: int = 3) -> AsyncIterator[Linked]:
    processes = [Process(f"web-{number}") for number in range(1, count + 1)]
    relay = Relay(processes)
    families: list[Family] = []
    for process in processes:
        ours, theirs = socket.socketpair()
        family = Family()
        process.line = await open_line(ours, partial(relay.heard, process), nothing)
        family.line = await open_line(theirs, family.heard, nothing)
        process.ready = True
        families.append(family)
    try:
        yield Linked(processes, families, relay)
    finally:
        for line in [each.line for each in processes] + [each.line for each in families]:
            if line is not None:
                line.close()
        await asyncio.sleep(0)


async def test_all_others_answer_and_none_asks_itself() -> None:
    async with linked() as group:
        for number, family in enumerate(group.families):
            family.hear("number", lambda said, number=number: said + str(number).encode())  # type: ignore[misc]
        assert sorted(await group.families[1].ask("number", b"#")) == [b"#0", b"#2"]
        assert await group.families[1].ask("unknown") == [b"", b""]


async def test_an_answer_may_take_its_time() -> None:
    async with linked() as group:
        asked = asyncio.Event()

        async def slowly(said: bytes) -> bytes:
            await asked.wait()
            return said + b"!"

        for family in group.families:
            family.hear("number", slowly)
        asking = asyncio.create_task(group.families[1].ask("number", b"#"))
        await asyncio.sleep(0)
        asked.set()
        assert await asking == [b"#!", b"#!"]


async def test_one_that_hangs_or_has_died_or_is_not_ready_is_left_out() -> None:
    async with linked(4) as group:
        for family in group.families:
            family.hear("x", lambda said: b"here")
        group.processes[1].ready = False
        silent = group.families[2]
        silent.heard = lambda message: None  # type: ignore[method-assign]
        line = silent.line
        assert line is not None
        line._heard = silent.heard
        asking = asyncio.create_task(group.families[0].ask("x"))
        assert await asking == [b"here"]
        asking = asyncio.create_task(group.families[0].ask("x"))
        await until(lambda: group.relay._asked)
        group.relay.left(group.processes[2])
        assert await asking == [b"here"]


async def test_an_answer_that_fails_breaks_no_line(caplog: pytest.LogCaptureFixture) -> None:
    async with linked(2) as group:
        group.families[1].hear("x", lambda said: bytes([1 // len(said)]))
        assert await group.families[0].ask("x", b"") == [b""]
        assert await group.families[0].ask("x", b"1") == [b"\x01"]

        async def later(said: bytes) -> bytes:
            return bytes([1 // len(said)])

        group.families[1].hear("y", later)
        assert await group.families[0].ask("y", b"") == [b""]
        assert await group.families[0].ask("y", b"1") == [b"\x01"]
    assert caplog.text.count("could not be heard") == 2


async def test_a_line_to_one_that_reads_nothing_takes_no_more() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        line = await open_line(ours, lambda message: None, nothing)
        sent = 0
        while line.send(Message("tell", 0, "x", [bytes(1_000_000)])):
            sent += 1
        assert UNREAD_BYTES_MAX // 1_000_000 <= sent <= UNREAD_BYTES_MAX // 1_000_000 + 3
        line.close()
        assert not MessagePipe(lambda message: None, nothing).send(Message("stop"))


async def test_a_key_that_is_revoked_here_is_forgotten_there_before_the_answer() -> None:
    clock, store = ManualClock(START), make_store("memory://")
    async with linked() as group:
        keys = [Keys(store, clock, family) for family in group.families]
        token = new_token(bytes(32))
        await keys[0].add(Key(name="k", digest=digest_of(token), roles=(Role.VIEWER,), created_at=0))
        assert [await each.find(token) is not None for each in keys] == [True] * 3
        await keys[1].revoke("k")
        assert [await each.find(token) for each in keys] == [None] * 3


async def test_a_session_that_ends_here_ends_there() -> None:
    clock, store = ManualClock(START), make_store("memory://")
    async with linked() as group:
        sessions = [Sessions(store, clock, lambda size: bytes(range(size)), family) for family in group.families]
        token = await sessions[0].begin("server-key", "digest")
        assert [await each.find(token) is not None for each in sessions] == [True] * 3
        await sessions[2].end(token)
        assert [await each.find(token) for each in sessions] == [None] * 3


async def test_wrong_keys_are_a_debt_at_every_process_and_a_right_one_is_known_at_each() -> None:
    clock = ManualClock(START)
    async with linked() as group:
        sign_ins = [SignIns(clock, siblings=family) for family in group.families]
        for number in range(FREE_FAILURES + 4):
            sign_ins[number % 3].failed("192.0.2.7", "GET /", "wrong", guess=True)
        await until(lambda: [each.wait_seconds("192.0.2.7") for each in sign_ins] == [1.0] * 3)
        assert [each.wait_seconds("192.0.2.8") for each in sign_ins] == [0.0] * 3
        sign_ins[0].succeeded("192.0.2.7", bytes(32))
        await until(lambda: [("192.0.2.7", bytes(32)) in each._known for each in sign_ins] == [True] * 3)


async def test_one_refusal_is_one_entry_for_all_processes() -> None:
    clock, store = ManualClock(START), make_store("memory://")
    async with linked() as group:
        refused = [RefusalLog(store, clock, family) for family in group.families]
        origin = Origin(principal=LOCAL, request_id="", address="")
        refused[0].change(origin, "DELETE", "/api/v1/keys/x", Forbidden("no", ["admin"]))
        await until(lambda: all(each._told for each in refused))
        for each in refused:
            each.change(origin, "DELETE", "/api/v1/keys/x", Forbidden("no", ["admin"]))
            await asyncio.gather(*each._writing)
        assert len((await store.list_records(RecordFilter("audit/"), None, 10)).items) == 1


async def test_who_listens_here_hears_of_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.services.polling.news.LOOK_SECONDS", 0.01)
    done = [0, 0]

    async def counts() -> Stats:
        return Stats(0, 0, ())

    async with linked(2) as group:
        news = [News(counts, LocalSignal(), lambda place=place: done[place]) for place in (0, 1)]  # type: ignore[misc]
        for each, family in zip(news, group.families, strict=True):
            each.join(family)
        stream = news[0].listen()
        first = asyncio.ensure_future(anext(stream))
        await until(lambda: news[0]._watching is not None and group.relay._number > 1)
        done[1] += 1
        assert await first == frozenset({"runs"})
        news[0].close()
        assert [kinds async for kinds in stream] == []
        watching: Any = news[0]._watching
        await watching


# ---- figures

OWN = b"""\
# HELP runs_total Runs.
# TYPE runs_total counter
runs_total{kind="a b"} 3.0
# HELP runs_created Runs.
# TYPE runs_created gauge
runs_created{kind="a b"} 20.5
# HELP depth Runs in the store.
# TYPE depth gauge
depth 7.0
# HELP took Seconds.
# TYPE took histogram
took_bucket{le="+Inf"} 2.0
took_sum 0.25
# HELP horarium_job_last_success_timestamp_seconds Success.
# TYPE horarium_job_last_success_timestamp_seconds gauge
horarium_job_last_success_timestamp_seconds{job="x"} 5.0
# HELP process_open_fds Files.
# TYPE process_open_fds gauge
process_open_fds 10.0
"""
OTHER = b"""\
# HELP runs_total Runs.
# TYPE runs_total counter
runs_total{kind="a b"} 4.0
runs_total{kind="c"} 1.0
# HELP runs_created Runs.
# TYPE runs_created gauge
runs_created{kind="a b"} 10.5
# HELP depth Runs in the store.
# TYPE depth gauge
depth 99.0
depth{queue="gone"} 1.0
# HELP took Seconds.
# TYPE took histogram
took_bucket{le="+Inf"} 5.0
took_sum 1.5
# HELP horarium_job_last_success_timestamp_seconds Success.
# TYPE horarium_job_last_success_timestamp_seconds gauge
horarium_job_last_success_timestamp_seconds{job="x"} 9.0
# HELP process_open_fds Files.
# TYPE process_open_fds gauge
process_open_fds 11.0
"""


def samples(text: bytes) -> dict[str, str]:
    lines = (line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines}


def test_counts_are_added_and_what_the_store_says_is_said_once() -> None:
    assert samples(add_up(OWN, [OTHER])) == {
        'runs_total{kind="a b"}': "7",
        'runs_total{kind="c"}': "1",
        'runs_created{kind="a b"}': "10.5",
        "depth": "7",
        'took_bucket{le="+Inf"}': "7",
        "took_sum": "1.75",
        'horarium_job_last_success_timestamp_seconds{job="x"}': "9",
        "process_open_fds": "21",
        "horarium_processes": "2",
    }


def test_what_a_process_counted_stays_after_its_end_and_what_it_had_goes() -> None:
    ended = counts_of([b"", OTHER])
    assert samples(ended).keys() == samples(OTHER).keys() - {"depth", 'depth{queue="gone"}', "process_open_fds"}
    whole = samples(add_up(OWN, [], [counts_of([ended, OTHER])]))
    assert (whole['runs_total{kind="a b"}'], whole["process_open_fds"], whole["depth"]) == ("11", "10", "7")
    assert (whole["took_sum"], whole["horarium_processes"]) == ("3.25", "1")


async def test_the_figures_of_a_process_that_died_stay_in_the_sum() -> None:
    async with linked(3) as group:
        for family in group.families[1:]:
            family.hear("metrics", lambda said: OTHER)

        async def runs() -> str:
            (text,) = await group.families[0].ask("metrics", OWN)
            return samples(text)['runs_total{kind="a b"}']

        assert await runs() == "11"
        group.relay.left(group.processes[2])
        group.processes[2].ready = False
        assert await runs() == "11"


# ---- connections, starts, processors


def crowds(count: int) -> list[Crowd]:
    """One table, as each of this number of processes sees it."""
    table = make_table(count)
    try:
        return [Crowd(os.dup(table), place) for place in range(count)]
    finally:
        os.close(table)


async def test_connections_that_come_one_by_one_and_stay_are_shared_out() -> None:
    """The first of these takers always wakes up first, as a process may that does nothing else."""
    taken: list[list[socket.socket]] = [[], [], []]
    crowd = crowds(3)
    clients: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)

        def taker(place: int) -> Accepting:
            async def take(connection: socket.socket) -> None:
                taken[place].append(connection)

            return Accepting(listener.dup(), take, crowd[place], lambda: len(taken[place]))

        takers = [taker(place) for place in range(len(taken))]
        for number in range(1, 31):
            clients.append(socket.create_connection(listener.getsockname()))
            await until(lambda number=number: sum(map(len, taken)) == number)  # type: ignore[misc]
            for each in takers:
                each.note()
        assert [len(each) for each in taken] == [10, 10, 10]
        takers[0].close()
        takers[1].close()
        clients += [socket.create_connection(listener.getsockname()) for _ in range(3)]
        await until(lambda: len(taken[2]) == 13)
        takers[2].close()
    for one in [*clients, *taken[0], *taken[1], *taken[2]]:
        one.close()


async def test_connections_that_come_at_once_are_shared_out() -> None:
    taken: Counter[int] = Counter()
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(40)]
        listener.setblocking(False)
        crowd = crowds(2)

        def taker(place: int) -> Accepting:
            async def take(connection: socket.socket) -> None:
                taken[place] += 1
                connection.close()

            return Accepting(listener.dup(), take, crowd[place], lambda: 0)

        both = [taker(0), taker(1)]
        await until(lambda: taken.total() == 40)
        for each in both:
            each.close()
            each.close()
            await each.wait_closed()
        for client in clients:
            client.close()
    assert taken == {0: 20, 1: 20}


async def test_a_client_that_left_before_it_was_taken_harms_nothing() -> None:
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        gone = socket.create_connection(listener.getsockname())
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()

        async def take(connection: socket.socket) -> None:
            taken.append(connection)

        accepting = Accepting(listener.dup(), take, crowds(1)[0], lambda: len(taken))
        with socket.create_connection(listener.getsockname()) as client:
            await until(lambda: taken and taken[-1].getpeername() == client.getsockname())
        accepting.close()
    for each in taken:
        each.close()


def test_only_a_process_that_fails_at_its_start_is_started_more_and_more_slowly() -> None:
    process = Process("web-1")
    process.begin(0.0)
    pauses = [process.pause(1.0) for _ in range(12)]
    assert pauses[:3] == [0.2, 0.4, 0.8]
    assert pauses[-1] == AGAIN_SECONDS_MAX
    for lived, pause in ((1.0, 0.2), (2.0, 0.2), (STEADY_SECONDS, 0.0), (1.0, 0.2)):
        process.begin(0.0)
        process.ready = True
        assert process.pause(lived) == pause, "killed while it worked: its place does not stay empty"
    process.begin(0.0)
    assert process.pause(1.0) == 0.2, "that it worked before counts"


@pytest.mark.parametrize(
    ("files", "own", "quotas"),
    [
        ({"cpu.max": "max 100000"}, "0::/", []),
        ({"cpu.max": "max 100000", "a/cpu.max": "250000 100000", "a/b/cpu.max": "400000 100000"}, "0::/a/b", [4, 2.5]),
        ({"cpu.max": "150000 100000"}, "0::/elsewhere/in/the/host", [1.5]),
        (
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "300000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
            "5:cpu,cpuacct:/x\n4:memory:/x",
            [3],
        ),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "5:cpu:/", []),
        ({}, None, []),
    ],
)
def test_a_quota_of_the_control_group_bounds_the_processors(
    files: dict[str, str], own: str | None, quotas: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    if own is not None:
        (tmp_path / "own").write_text(own + "\n")
    assert list(cpus._quotas(tmp_path, tmp_path / "own")) == quotas
    monkeypatch.setattr(cpus, "allowed_cpus", lambda: 8)
    monkeypatch.setattr(cpus, "CGROUPS", tmp_path)
    monkeypatch.setattr(cpus, "OWN_CGROUPS", tmp_path / "own")
    assert cpus.usable_cpus() == (int(min(quotas)) if quotas else 8)
