"""The store fails under a running server: its file is held by somebody else, its disk is full."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import apsw
import pytest

from tests.proof.disk import SmallDisk
from tests.proof.harness import Answer, Fault, Node, World, at_once
from tests.proof.jobs import LATER, SECOND, Plan, http, queue, soon
from tests.proof.ledger import Ledger
from tests.proof.receiver import micros
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy
from tests.waiting import eventually, let_pass

pytestmark = pytest.mark.slow

LOCKED_SECONDS = 8.0
STALLED_SECONDS = 30.0
CUT_SECONDS = 3.0
MARGIN_SECONDS = 9.0
"""How long jobs fire before and after an outage, together."""
LINES_MAX = 20
"""From the beginning of an outage to the end of its experiment: a line for each reason that any of some twenty parts
met, and one for its end."""
FULL_SECONDS = 3.0
RESUME_SECONDS = 5.0
LINES_PER_SECOND_MAX = 10


def put(node: Node, name: str) -> Answer:
    """Ask for a job that never runs: a write whose acknowledgement is a promise."""
    definition = {"name": name, "trigger": LATER, "target": queue("none", filler="x" * 2_000)}
    return node.api.call("PUT", f"/api/v1/jobs/{name}", definition, timeout=30)


def outlived(
    world: World, kind: str, seconds: float, begin: Callable[[], object], end: Callable[[], object], why: str
) -> None:
    """Jobs every second through an outage: what is said meanwhile, and that nothing is lost."""
    (node,) = world.nodes
    start = soon(node.api, 10)
    plan = Plan(start, start + round(seconds + MARGIN_SECONDS) * SECOND)
    for number in range(10):
        plan.interval(f"{kind}-{number}", 1, http(f"{world.receiver.url}/ok"))
    plan.define(node.api)
    promised = [name for name in (f"{kind}-before-{number}" for number in range(5)) if put(node, name).status == 201]
    assert len(promised) == 5
    eventually(lambda: world.receiver.count(kind) >= 15, 20, what="arrivals")

    def fault() -> None:
        at = micros()
        begin()
        refused = put(node, f"{kind}-during-1")
        if refused.status == 201:
            promised.append(f"{kind}-during-1")
            refused = put(node, f"{kind}-during-2")
        print(f"{kind}: a write was refused {(micros() - at) / SECOND:.1f} s after it began")
        assert (refused.status, refused.type) == (503, "application/problem+json"), refused
        assert refused.body["code"] == "store_unavailable"
        eventually(lambda: _unready(node), 12, what="/readyz to say so")
        # A part that was just speaking to the store may first say what it met: a connection that was closed.
        eventually(lambda: _says(node, why), 12, what=f"/readyz to say why ({why})")
        assert node.api.call("GET", "/healthz").status == 200
        let_pass(max(0.0, seconds - (micros() - at) / SECOND))
        end()

    world.outage(kind, fault)
    back = micros()
    assert back < plan.end - SECOND, "the outage outlasted the window, so nothing could be seen to go on"

    def fresh() -> bool:
        return any(arrival.fire_at > back for arrival in list(world.receiver.arrivals) if arrival.job.startswith(kind))

    world.receiver.wait_for(fresh, 15, "new fire times")
    resumed = (micros() - back) / SECOND
    eventually(lambda: node.api.call("GET", "/readyz").status == 200, 10, what="/readyz to be well again")
    assert put(node, f"{kind}-after").status == 201
    world.wait_over(plan.end, 30)
    for name in (*promised, f"{kind}-after"):
        assert node.api.call("GET", f"/api/v1/jobs/{name}").status == 200, f"{name} was acknowledged, and is not there"
    verdict = Ledger(plan.owed, node.api.runs(), world.receiver.arrivals, (), world.all_faults()).judge()
    lasted = (back - world.faults[-1].at) / SECOND
    lines = node.lines_per_second()
    must_say_it_once(node, world.faults[-1])
    print(f"{kind} for {lasted:.1f} s: new fire times {resumed:.2f} s after its end, {lines} log lines a second")
    print(verdict)
    verdict.must_hold()
    assert resumed <= RESUME_SECONDS
    assert lines <= LINES_PER_SECOND_MAX


def must_say_it_once(node: Node, fault: Fault) -> None:
    """Each reason was said once for all parts that met it, and its end; refused requests were told of once."""
    said = [line for at, line in list(node.lines) if at >= fault.at]
    reasons = Counter(match[1] for line in said if (match := re.search(r"can't work: (.*); each part", line)))
    refused = [line for line in said if "without a line here" in line]
    assert reasons, f"the log says nothing of the outage: {said}"
    assert max(reasons.values()) == 1, f"said again and again: {reasons}"
    assert sum("works again: " in line for line in said) == len(reasons), said
    assert len(refused) <= 1, refused
    assert len(said) <= LINES_MAX, said


def _says(node: Node, why: str) -> bool:
    ready = _unready(node)
    return ready is not None and any(why in reason for reason in ready.body["problems"].values())


def _unready(node: Node) -> Answer | None:
    answer = node.api.call("GET", "/readyz")
    return answer if answer.status == 503 else None


def a_file_that_another_process_holds(folder: Path) -> None:
    with World(f"sqlite:///{folder}/store.db") as world:
        world.node()
        with closing(apsw.Connection(f"{folder}/store.db")) as holder:
            holder.set_busy_timeout(10_000)
            begin, end = (lambda sql=sql: holder.execute(sql).close() for sql in ("BEGIN EXCLUSIVE", "ROLLBACK"))
            outlived(world, "locked", LOCKED_SECONDS, begin, end, "held the file")


def a_full_disk(folder: Path) -> None:
    with SmallDisk(folder / "disk") as disk, World(f"sqlite:///{disk.folder}/store.db") as world:
        node = world.node()
        why = "the disk is full" if disk.real else "writing failed"
        outlived(world, "disk-full", FULL_SECONDS, lambda: disk.fill(node), lambda: disk.free(node), why)
        node.kill()
        with closing(apsw.Connection(f"{disk.folder}/store.db")) as store:
            assert store.pragma("integrity_check") == "ok"


def a_database_that_stands_still(folder: Path) -> None:
    """SIGSTOP to all of PostgreSQL for half a minute."""
    with ExitStack() as stack:
        server = Postgres()
        stack.callback(server.stop)
        server.start()
        world = stack.enter_context(World(server.url))
        world.node()
        outlived(world, "stalled", STALLED_SECONDS, server.pause, server.resume, "did not answer in time")


def a_database_that_fails_over(folder: Path) -> None:
    """Its connections are cut and new ones refused, as when the address moves; then it is stopped at once, without a
    checkpoint, and started again on the same port."""
    with ExitStack() as stack:
        server = Postgres()
        stack.callback(server.stop)
        server.start()
        proxy = stack.enter_context(Proxy(server.port))
        world = stack.enter_context(World(f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"))
        world.node()
        outlived(world, "cut-off", CUT_SECONDS, proxy.cut, proxy.heal, "can't be reached")
        outlived(world, "immediate", CUT_SECONDS, lambda: server.halt(signal.SIGQUIT), server.start, "can't be reached")


def test_a_store_that_fails_for_a_while_stops_nothing_for_good(tmp_path: Path) -> None:
    """All at once, each for itself: what they mostly do is wait."""
    failures = (
        a_file_that_another_process_holds, a_full_disk, a_database_that_stands_still, a_database_that_fails_over
    )  # fmt: skip
    for failure in failures:
        (tmp_path / failure.__name__).mkdir()
    at_once([partial(failure, tmp_path / failure.__name__) for failure in failures])
