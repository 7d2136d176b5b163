"""The worker against a whole server: what it must never lose, and when it must let go."""

from __future__ import annotations

import json
import logging
import select
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from horarium import Defer, Discard, Retry, errors
from horarium.client import ClaimedRun, Client, Failure, Worker
from horarium.client.held import Held
from horarium.client.lines import Lines
from horarium.model import RESULT_BYTES_MAX
from horarium.testing.values import a_run
from horarium.wire.views import RunView, run_view
from tests.client.scripted import SILENCE, problem, scripted
from tests.servers.live import LiveServer
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow
LEASE = {"heartbeat_seconds": 9}
"""It is renewed every three seconds: a machine that stands still for five ends none."""


@contextmanager
def working(client: Client, queue: str, perform: Callable[[ClaimedRun], Any], **options: Any) -> Iterator[Worker]:
    """A worker in a thread; stopped, and done, at the end."""
    worker = Worker(client, [queue], perform, **{"slots": 2, **options})
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def triggered(client: Client, name: str, payload: Any = 1, **fields: Any) -> RunView:
    target = {"type": "queue", "queue": name}
    client.put_job({"name": name, "trigger": {"type": "interval", "every_seconds": 3600}, "target": target, **fields})
    return client.trigger_job(name, payload)


def performed_once(client: Client, name: str, perform: Callable[[ClaimedRun], Any], **fields: Any) -> RunView:
    """One run, performed and settled."""
    begun = threading.Event()

    def noted(run: ClaimedRun) -> Any:
        begun.set()
        return perform(run)

    run = triggered(client, name, **fields)
    with working(client, name, noted):
        assert begun.wait(PATIENCE)
    return client.get_run(run.id)


def failing(error: BaseException) -> Callable[[ClaimedRun], Any]:
    def perform(run: ClaimedRun) -> Any:
        raise error

    return perform


def test_what_the_function_returns_is_the_result(client: Client) -> None:
    seen: list[ClaimedRun] = []

    def perform(run: ClaimedRun) -> Any:
        seen.append(run)
        return {"sum": run.payload + 1}

    done = performed_once(client, "result", perform, payload=41)
    assert (done.state, done.result, done.attempt) == ("completed", {"sum": 42}, 1)
    assert (seen[0].id, seen[0].job, seen[0].attempt) == (done.id, "result", 1)
    assert seen[0].lease_seconds == pytest.approx(30, abs=5)


def test_a_worker_says_at_once_what_it_is_there_for(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "horarium.worker")
    with working(client, "said", lambda run: None, name="w1"):
        eventually(lambda: f"w1 takes runs of said from {client.url}, 2 at a time" in caplog.messages, what="the line")


def test_raising_fails_the_attempt_and_another_follows(client: Client) -> None:
    done = performed_once(client, "raise", failing(KeyError("x")))
    assert (done.state, done.attempt) == ("pending", 1)
    assert "KeyError: 'x' (at test_worker.py:" in done.history[-1].message


def test_discard_fails_for_good(client: Client) -> None:
    done = performed_once(client, "discard", failing(Discard("no such customer")))
    assert (done.state, done.error) == ("failed", "no such customer")


def test_retry_says_when(client: Client) -> None:
    done = performed_once(client, "retry", failing(Retry("busy", after=3000)))
    assert done.state == "pending"
    assert (done.due_at - done.created_at).total_seconds() > 2900


@pytest.mark.parametrize(("after", "seconds"), [(timedelta(days=7), 86_400), (-0.5, 0), (float("nan"), 5)])
def test_retry_says_what_can_not_be_and_the_failure_is_told(client: Client, after: Any, seconds: float) -> None:
    name = f"odd-pause-{seconds}"  # the run of another case may wait for its second attempt still
    done = performed_once(client, name, failing(Retry("busy", after=after)), retry={"attempts_max": 2})
    assert done.history[2].message == "attempt 1 failed: busy"
    if seconds:
        assert seconds / 2 <= (done.due_at - done.history[2].at).total_seconds() <= seconds


def test_defer_costs_no_attempt(client: Client) -> None:
    until = datetime(2100, 1, 1, tzinfo=UTC)
    done = performed_once(client, "defer", failing(Defer(until)))
    assert (done.state, done.due_at) == ("pending", until)


def test_a_call_of_exit_fails_the_run_and_not_the_worker(client: Client) -> None:
    def perform(run: ClaimedRun) -> Any:
        raise SystemExit(3)

    done = performed_once(client, "exit", perform, retry={"attempts_max": 1})
    assert (done.state, done.error) == ("failed", "it called exit(3)")


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    "error",
    [
        OSError("no such file: caf\udce9.txt"),
        Failure("no", result={"a": object()}),
        Failure("no", result="\udce9"),
        Mute(),
        CancelledError(),
        KeyboardInterrupt(),
    ],
    ids=["no text", "no JSON", "no text in the result", "mute", "cancelled", "interrupted"],
)
def test_no_error_takes_the_worker_with_it(
    client: Client, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the thread that performs the run nor that which reports its end."""
    monkeypatch.setattr(logging.getLogger("horarium.worker"), "disabled", True)  # pytest can't pass such text on
    done = performed_once(client, f"odd-{type(error).__name__.lower()}", failing(error))
    assert (done.state, done.attempt, done.error is None) == ("pending", 1, False)


def test_lines_that_are_no_text_fail_nothing(client: Client) -> None:
    done = performed_once(client, "lines", lambda run: run.log("caf\udce9.txt"))
    assert done.state == "completed"
    assert [line.text for line in client.run_log(done.id).items] == ["caf?.txt"]


def test_a_result_that_is_no_json_fails_for_good(client: Client) -> None:
    done = performed_once(client, "unwritable", lambda run: object())
    assert done.state == "failed"
    assert "can't be written as JSON" in (done.error or "")


def test_a_result_at_the_limit_is_kept_and_a_longer_one_is_shortened(client: Client) -> None:
    at_limit = "x" * (RESULT_BYTES_MAX - 2)
    assert performed_once(client, "limit", lambda run: at_limit).result == at_limit
    beyond = performed_once(client, "beyond", lambda run: at_limit + "x")
    assert (beyond.state, beyond.result["truncated"]) == ("completed", True)


def test_a_cancel_is_seen_while_it_runs(client: Client) -> None:
    begun = threading.Event()

    def perform(run: ClaimedRun) -> Any:
        begun.set()
        assert run.cancel_requested.wait(PATIENCE)
        raise RuntimeError("stopped")

    run = triggered(client, "cancel", timeouts=LEASE)
    with working(client, "cancel", perform):
        assert begun.wait(PATIENCE)
        assert client.cancel_run(run.id).state == "cancelling"
    assert client.get_run(run.id).state == "cancelled"


def test_a_lease_is_renewed_for_as_long_as_the_work_takes(client: Client) -> None:
    beaten = threading.Event()
    ends: list[datetime] = []

    class Counting(Client):
        def heartbeat(self, *args: Any, **how: Any) -> Any:
            pulse = super().heartbeat(*args, **how)
            ends.append(pulse.expires_at)
            if len(ends) == 2:
                beaten.set()
            return pulse

    run = triggered(client, "long", timeouts=LEASE)
    with Counting(client.url) as counting, working(counting, "long", lambda run: beaten.wait(PATIENCE)):
        assert beaten.wait(PATIENCE)
    assert ends[0] < ends[1], "each beat puts its end off"
    done = client.get_run(run.id)
    assert (done.state, done.attempt, done.result) == ("completed", 1, True)


def test_a_lost_lease_stops_the_work_and_drops_its_outcome(client: Client) -> None:
    begun = threading.Event()
    lost: list[bool] = []

    def perform(run: ClaimedRun) -> Any:
        client.fail(run.id, run.token, "somebody else has it", retryable=False)
        begun.set()
        lost.append(run.cancel_requested.wait(PATIENCE) and run.lease_lost)
        return "mine"

    run = triggered(client, "zombie", timeouts=LEASE)
    with working(client, "zombie", perform):
        assert begun.wait(PATIENCE)
    done = client.get_run(run.id)
    assert (lost, done.state, done.result) == ([True], "failed", None)


def test_a_stop_finishes_what_runs_and_gives_back_what_has_not_begun(client: Client) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def perform(run: ClaimedRun) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE)

    ids = [triggered(client, "drain").id for _ in range(3)]
    with working(client, "drain", perform, slots=1, prefetch=5) as worker:
        assert begun.wait(PATIENCE)
        worker.stop()
        go_on.set()
    found = sorted((client.get_run(id) for id in ids), key=lambda run: run.state)
    assert [run.state for run in found] == ["completed", "pending", "pending"]
    with Client(client.url) as other:
        again = other.claim(["drain"], 5, "other")
    assert [run.attempt for run in again] == [1, 1], "a release costs no attempt"


def test_a_stop_does_not_wait_for_the_long_poll_and_loses_no_run(client: Client) -> None:
    with working(client, "idle", lambda run: None, wait_seconds=60):
        eventually(lambda: client.stats()["workers_waiting"])
    run = triggered(client, "idle")
    assert [found.id for found in client.claim(["idle"], 1, "other")] == [run.id]


def test_a_stop_cuts_off_no_answer_that_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy hangs up as soon as we do."""
    monkeypatch.setattr("horarium.client.worker.HAND_OVER_SECONDS", PATIENCE)
    asked, settled = threading.Event(), list[Any]()
    lease = {"token": 7, "expires_at": "2030-01-01T00:00:30Z"}
    run = {**msgspec.to_builtins(run_view(a_run(1, queue="pull/q"))), "started_at": lease["expires_at"], "lease": lease}

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            said: Any = [{"id": each["id"], "state": "completed"} for each in body] if isinstance(body, list) else {}
            if self.path.endswith("/claim"):
                asked.set()
                said = {"runs": [run]}
                if select.select([self.connection], [], [], 0.2)[0]:
                    return
            else:
                settled.extend(body)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever).start()
        with Client(f"http://127.0.0.1:{proxy.server_port}") as client, working(client, "q", lambda run: 1):
            assert asked.wait(PATIENCE)
        proxy.shutdown()
    assert [(each["id"], each["outcome"]) for each in settled] == [(run["id"], "released")]


def test_work_that_outlives_the_grace_is_asked_to_stop(client: Client) -> None:
    begun = threading.Event()

    def perform(run: ClaimedRun) -> Any:
        begun.set()
        assert run.cancel_requested.wait(PATIENCE)
        return "stopped early"

    run = triggered(client, "grace")
    with working(client, "grace", perform, grace_seconds=0.01):
        assert begun.wait(PATIENCE)
    left = client.get_run(run.id)
    assert (left.state, left.result) == ("pending", None), "nobody can tell how much of the work it has left out"
    assert left.history[-1].message == "attempt 1 failed: its worker stopped: it returned"


def test_work_that_was_done_within_the_grace_is_done_though_its_last_lines_are_still_sent(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending, given_up = threading.Event(), threading.Event()

    def slowly(self: Lines, run: Any) -> None:
        sending.set()
        assert given_up.wait(PATIENCE)

    def abandon(self: Held) -> None:
        abandoned(self)
        given_up.set()

    abandoned = Held.abandon_running
    monkeypatch.setattr(Lines, "sent", slowly)
    monkeypatch.setattr(Held, "abandon_running", abandon)
    run = triggered(client, "said")
    with working(client, "said", lambda run: "done", grace_seconds=0.01, cancel_grace_seconds=0.01):
        assert sending.wait(PATIENCE)
    done = client.get_run(run.id)
    assert (done.state, done.result) == ("completed", "done")


def test_outcomes_are_settled_in_groups(client: Client) -> None:
    count = 60
    settled = threading.Semaphore(0)

    class Grouping(Client):
        requests = 0

        def settle(self, reports: Any) -> Any:
            self.requests += 1
            return super().settle(reports)

    ids = [triggered(client, "group", number).id for number in range(count)]
    with Grouping(client.url) as grouping:
        with working(grouping, "group", lambda run: settled.release(), slots=4, prefetch=count):
            assert all(settled.acquire(timeout=PATIENCE) for _ in range(count))
        assert grouping.requests < count
    assert {client.get_run(id).state for id in ids} == {"completed"}


def test_a_restart_of_the_server_is_survived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "horarium.worker")
    server = LiveServer(store=f"sqlite:///{tmp_path}/h.db")
    server.start()
    begun, go_on, second = threading.Event(), threading.Event(), threading.Event()

    def perform(run: ClaimedRun) -> Any:
        if run.payload == "second":
            second.set()
            return
        begun.set()
        assert go_on.wait(PATIENCE)

    with Client(server.url, attempts_max=1) as client:
        first = triggered(client, "restart", "first")
        with working(client, "restart", perform):
            assert begun.wait(PATIENCE)
            server.stop()
            go_on.set()
            server.start_again()
            client.trigger_job("restart", "second")
            assert second.wait(PATIENCE)
        assert client.get_run(first.id).state == "completed"
    server.stop()


def test_what_the_server_refuses_for_good_ends_the_worker() -> None:
    refusing = problem(401, "unauthorized", "give a key")
    with scripted(refusing) as server, Client(server.url) as client, pytest.raises(errors.CallerError, match="a key"):
        Worker(client, ["q"], print).run()


def test_a_worker_that_is_stopped_while_nothing_answers_ends() -> None:
    with scripted(SILENCE) as server, Client(server.url) as client, working(client, "q", print):
        assert server.waiting.wait(PATIENCE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slots": 0}, "slots: must be from 1 to 256"),
        ({"slots": 257}, "slots: must be from 1 to 256"),
        ({"prefetch": 1001}, "prefetch: must be from 0 to 1000"),
        ({"wait_seconds": 61}, "wait_seconds: must be from 0 to 60"),
    ],
)
def test_limits_are_named(options: dict[str, Any], words: str) -> None:
    with Client() as client, pytest.raises(errors.InvalidRequest, match=words):
        Worker(client, ["q"], print, **options)


def test_a_worker_serves_at_least_one_queue() -> None:
    with Client() as client, pytest.raises(errors.InvalidRequest, match="queues: name at least one"):
        Worker(client, [], print)
