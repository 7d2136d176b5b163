"""The scheduler without asyncio: the same methods from any thread, refused where they would wait for themselves."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from horarium import Conflict, InvalidTrigger, NotFound, RunContext, Scheduler, SyncScheduler, cron
from horarium.library.values import Run
from horarium.model import State
from tests.blackbox.outside import environment
from tests.handlers.conftest import done
from tests.waiting import PATIENCE, eventually

OWN_WAY = {"open", "close", "run_forever", "handler", "job"}
WITHIN = {"run_until_asked", "ask_to_stop"}


@pytest.fixture
def scheduler() -> Iterator[SyncScheduler]:
    with SyncScheduler("memory://", handler_concurrency=8) as scheduler:
        yield scheduler


def over(scheduler: SyncScheduler, run: Run) -> Run:
    """The run, once it is finished."""
    return scheduler.wait_for(run.id, PATIENCE)


def test_every_public_method_of_the_scheduler_is_there_with_its_parameters() -> None:
    methods = {
        name: found for name, found in inspect.getmembers(Scheduler) if inspect.isfunction(found) and name[0] != "_"
    }
    assert len(methods) > 20
    for name in methods.keys() - WITHIN:
        assert hasattr(SyncScheduler, name), f"blocking.py: add `{name} = blocking(Scheduler.{name})`"
        found = getattr(SyncScheduler, name)
        assert not inspect.iscoroutinefunction(found)
        if name not in OWN_WAY:
            assert inspect.signature(found) == inspect.signature(methods[name])
            assert found.__doc__ == methods[name].__doc__


def test_jobs_and_runs_from_a_program_without_asyncio(scheduler: SyncScheduler) -> None:
    @scheduler.handler("add", concurrency=2)
    def add(run: RunContext, a: int, b: int) -> int:
        return a + b

    @scheduler.handler()
    async def later(run: RunContext) -> str:
        return "async handlers too"

    job = scheduler.add_job("nightly", cron("0 3 * * *"), handler="add", args={"a": 1, "b": 2}, labels={"team": "x"})
    assert scheduler.get_job("nightly") == job
    assert [found.name for found in scheduler.list_jobs(labels={"team": "x"}).items] == ["nightly"]
    assert len(scheduler.fires("nightly", 3)) == 3
    scheduler.start()
    assert over(scheduler, scheduler.trigger_job("nightly")).result == b"3"
    assert over(scheduler, scheduler.enqueue("add", {"a": 2, "b": 2})).result == b"4"
    assert over(scheduler, scheduler.enqueue("later")).result == b'"async handlers too"'
    assert len(scheduler.enqueue_many("later", [{}, {}])) == 2
    scheduler.stop()
    assert scheduler.delete_jobs(labels={"team": "x"}) == 1


def test_a_batch_is_closed_at_its_end_and_cancelled_by_an_error(scheduler: SyncScheduler) -> None:
    @scheduler.handler("row")
    def row(run: RunContext, number: int) -> int:
        return number

    scheduler.start()
    with scheduler.batch("import") as batch:
        first = batch.enqueue("row", {"number": 1})
        assert len(batch.enqueue_many("row", [{"number": 2}, {"number": 3}])) == 2
    assert scheduler.wait_for_batch(batch.id, PATIENCE).completed == 3
    assert over(scheduler, first).result == b"1"
    with pytest.raises(ZeroDivisionError), scheduler.batch() as failed:
        raise ZeroDivisionError
    assert scheduler.get_batch(failed.id).state == "finished"


def test_errors_are_those_of_the_async_methods(scheduler: SyncScheduler) -> None:
    with pytest.raises(NotFound, match="there is no job named 'none'"):
        scheduler.get_job("none")
    with pytest.raises(InvalidTrigger):
        scheduler.add_job("x", {"type": "cron", "expression": "61 * * * *"}, queue="q")
    with pytest.raises(ValueError, match="not both"):
        scheduler.enqueue("x", at=datetime(2030, 1, 1, tzinfo=UTC), delay=1)
    with pytest.raises(TypeError, match="dely"):
        scheduler.enqueue("x", dely=1)  # type: ignore[call-arg]


def test_many_threads_may_call_at_once(scheduler: SyncScheduler) -> None:
    def use(number: int) -> list[str]:
        return [scheduler.enqueue("x", {"n": number}, unique_key=f"k{number % 5}").id for _ in range(20)]

    with ThreadPoolExecutor(10) as pool:
        ids = {run_id for found in pool.map(use, range(20)) for run_id in found}
    assert len(ids) == 5


def test_the_first_call_opens_it_and_threads_that_come_together_open_it_once() -> None:
    others = loops()
    scheduler = SyncScheduler("memory://")
    together = threading.Barrier(8)

    def use(_: int) -> str:
        together.wait(PATIENCE)
        return scheduler.enqueue("x").id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(use, range(8)))) == 8
    assert len(scheduler.list_runs().items) == 8
    assert len(loops() - others) == 1
    scheduler.close()
    scheduler.close()
    assert loops() <= others
    with pytest.raises(Conflict, match="is closed"):
        scheduler.enqueue("x")


def test_a_call_inside_an_async_handler_is_refused_and_in_a_plain_one_it_works(scheduler: SyncScheduler) -> None:
    @scheduler.handler()
    async def wrong(run: RunContext) -> None:
        scheduler.enqueue("right", {"left": 0})

    @scheduler.handler()
    async def close(run: RunContext) -> None:
        scheduler.close()

    @scheduler.handler()
    def right(run: RunContext, left: int) -> str | None:
        return scheduler.enqueue("right", {"left": left - 1}).id if left else None

    scheduler.start()
    run = over(scheduler, scheduler.enqueue("wrong", retry={"attempts_max": 1}))
    assert "was called on the event loop of its own scheduler" in (run.error or "")
    run = over(scheduler, scheduler.enqueue("close", retry={"attempts_max": 1}))
    assert "was called on the event loop of its own scheduler" in (run.error or ""), "and it is open still"
    scheduler.enqueue("right", {"left": 5})
    eventually(lambda: len(scheduler.list_runs(states=["completed"]).items) == 6)


async def test_the_plain_handlers_of_an_async_scheduler_may_enqueue() -> None:
    async with Scheduler("memory://") as scheduler:
        sync = SyncScheduler(scheduler)

        @scheduler.handler()
        def parent(run: RunContext) -> str:
            return sync.enqueue("child", unique_key=run.id).id

        @scheduler.handler()
        async def child(run: RunContext) -> None: ...

        await scheduler.start()
        run = await done(scheduler, "parent")
        assert run.state is State.COMPLETED
        with pytest.raises(Conflict, match="await the methods of a Scheduler"):
            sync.enqueue("child")
        sync.close()
        assert (await done(scheduler, "child")).state is State.COMPLETED, "its owner goes on"


def test_options_belong_to_the_scheduler_that_is_given() -> None:
    with pytest.raises(ValueError, match="give options to the Scheduler itself"):
        SyncScheduler(Scheduler("memory://"), grace_seconds=3)


def test_closing_waits_for_what_runs_and_ends_calls_of_other_threads(scheduler: SyncScheduler) -> None:
    begun, go_on = threading.Event(), threading.Event()
    finished: list[str] = []

    @scheduler.handler()
    def work(run: RunContext) -> None:
        begun.set()
        go_on.wait(PATIENCE)
        finished.append(run.id)

    scheduler.start()
    run = scheduler.enqueue("work")
    assert begun.wait(PATIENCE)
    threading.Timer(0.1, go_on.set).start()
    scheduler.close()
    assert finished == [run.id]


def test_stop_from_another_thread_ends_run_forever(scheduler: SyncScheduler) -> None:
    thread = threading.Thread(target=scheduler.run_forever)
    thread.start()
    eventually(lambda: scheduler._scheduler._runtime.running)
    scheduler.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive()


# ---- whole programs ---------------------------------------------------------------------------------------------


def program(text: str, folder: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *flags, "-c", text], cwd=folder, env=environment(), text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


FOREVER = """
from horarium import SyncScheduler
scheduler = SyncScheduler("sqlite:///own.db")

@scheduler.handler()
def tick(run):
    print("tick", flush=True)
    run.cancelled.wait(0.2)
    print("tock", flush=True)

with scheduler:
    scheduler.enqueue("tick")
    scheduler.run_forever()
print("over", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_run_forever_after_what_runs(tmp_path: Path, number: signal.Signals) -> None:
    running = program(FOREVER, tmp_path)
    assert running.stdout is not None
    assert running.stdout.readline() == "tick\n"
    running.send_signal(number)
    out, error = running.communicate(timeout=PATIENCE)
    assert (running.returncode, error) == (0, "")
    assert out.splitlines() == ["tock", "over"]


INTERRUPTED = """
import os, signal, threading, time
from horarium import SyncScheduler
from horarium.stores.memory import MemoryStore

class Slow(MemoryStore):
    async def stats(self, now):
        import asyncio
        print("asked", flush=True)
        await asyncio.sleep(60)

scheduler = SyncScheduler(Slow())
try:
    scheduler.stats()
except KeyboardInterrupt:
    print("interrupted", len(scheduler.list_runs().items), flush=True)
scheduler.close()
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_call_that_waits_and_leaves_the_scheduler_whole(tmp_path: Path) -> None:
    running = program(INTERRUPTED, tmp_path)
    assert running.stdout is not None
    assert running.stdout.readline() == "asked\n"
    running.send_signal(signal.SIGINT)
    out, error = running.communicate(timeout=PATIENCE)
    assert (running.returncode, out, error) == (0, "interrupted 0\n", "")


FORGOTTEN = """
from horarium import SyncScheduler
scheduler = SyncScheduler("sqlite:///own.db")

@scheduler.handler()
def work(run):
    begun.set()
    run.cancelled.wait(0.3)
    open("done", "w").close()

import threading
begun = threading.Event()
scheduler.start()
scheduler.enqueue("work")
begun.wait()
"""


@pytest.mark.slow
def test_a_program_that_forgets_to_close_is_drained_at_its_end(tmp_path: Path) -> None:
    running = program(FORGOTTEN, tmp_path)
    out, error = running.communicate(timeout=PATIENCE)
    assert (running.returncode, out, error) == (0, "", "")
    assert (tmp_path / "done").exists()
    with SyncScheduler(f"sqlite:///{tmp_path}/own.db") as scheduler:
        assert [run.state for run in scheduler.list_runs().items] == ["completed"]


FORKED = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later warn of any fork beside threads
from horarium import Conflict, SyncScheduler
scheduler = SyncScheduler("sqlite:///own.db")
scheduler.enqueue("x")
pid = os.fork()
if pid == 0:
    try:
        scheduler.enqueue("x")
    except Conflict as error:
        os._exit(7 if "forked" in str(error) else 1)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(scheduler.list_runs().items))
"""


@pytest.mark.slow
def test_a_fork_after_the_opening_is_told(tmp_path: Path) -> None:
    out, error = program(FORKED, tmp_path).communicate(timeout=PATIENCE)
    assert (out, error) == ("7 1\n", "")


FORKED_IN_A_COROUTINE = """
import asyncio, os, sys
from horarium import Scheduler

async def main():
    async with Scheduler("sqlite:///own.db") as scheduler:
        ran = asyncio.Event()

        @scheduler.handler()
        async def work(run):
            ran.set()

        await scheduler.start()
        pid = os.fork()
        if pid == 0:
            sys.stderr = open("child", "w")
            return
        status = await asyncio.to_thread(os.waitpid, pid, 0)
        await scheduler.enqueue("work")
        await ran.wait()
        print(os.waitstatus_to_exitcode(status[1]))

asyncio.run(main())
print("ended")
"""


@pytest.mark.slow
def test_a_forked_child_that_tidies_up_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    out, _ = program(FORKED_IN_A_COROUTINE, tmp_path).communicate(timeout=PATIENCE)
    assert out == "1\nended\n"
    assert "of which this one is a fork" in (tmp_path / "child").read_text()


@pytest.mark.slow
def test_it_works_line_by_line_in_an_interpreter(tmp_path: Path) -> None:
    lines = """
from horarium import SyncScheduler
s = SyncScheduler("memory://")
s.add_handler("double", lambda run, n: 2 * n)
s.start()
r = s.enqueue("double", {"n": 21})
import time
while not s.get_run(r.id).finished: time.sleep(0.01)

print(s.get_run(r.id).result)
"""
    shell = subprocess.run(
        [sys.executable, "-i", "-q"], input=lines, cwd=tmp_path, env=environment(), text=True, capture_output=True,
        timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert "b'42'" in shell.stdout
    assert "Error" not in shell.stderr


WSGI = """
import sys, threading, urllib.request
from concurrent.futures import ThreadPoolExecutor
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from horarium import SyncScheduler

scheduler = SyncScheduler("sqlite:///web.db")

@scheduler.handler()
def mail(run, to: str):
    return to

def app(environ, answer):
    try:
        run = scheduler.enqueue("mail", {"to": environ["QUERY_STRING"] or None})
    except ValueError as error:
        answer("400 Bad Request", [])
        return [str(error).encode()]
    answer("202 Accepted", [])
    return [run.id.encode()]

class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

class Quiet(WSGIRequestHandler):
    def log_message(self, *args): pass

with make_server("127.0.0.1", 0, app, Server, Quiet) as server, scheduler:
    scheduler.start()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/?"
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda n: urllib.request.urlopen(url + f"to{n}").read().decode(), range(40)))
    try:
        urllib.request.urlopen(url)
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
    import time
    until = time.monotonic() + 120
    while len(scheduler.list_runs(states=["completed"]).items) < 40 and time.monotonic() < until:
        time.sleep(0.02)
    print(len(set(ids)), len(scheduler.list_runs(states=["completed"]).items))
    server.shutdown()
"""


@pytest.mark.slow
def test_a_web_application_with_threads_enqueues_from_its_views(tmp_path: Path) -> None:
    out, error = program(WSGI, tmp_path).communicate(timeout=PATIENCE)
    assert out.splitlines() == ["400 argument 'to': expected `str`, got `null`", "40 40"], error
    assert error == ""


def loops() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("horarium-loop")}


def test_nothing_is_left_behind() -> None:
    before, others = len(os.listdir("/proc/self/fd")), loops()
    for _ in range(5):
        with SyncScheduler("memory://") as scheduler:
            scheduler.enqueue("x")
    assert loops() <= others
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)
