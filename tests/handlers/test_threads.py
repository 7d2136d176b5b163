"""Threads for work that blocks: none waits for another, idle ones are used again and end, nothing gets lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from horarium.delivery.threads import Threads
from tests.blackbox.outside import environment
from tests.waiting import PATIENCE, until

WORD: ContextVar[str] = ContextVar("word")


async def test_every_call_begins_at_once_however_many_are_under_way() -> None:
    threads, count = Threads("test"), 100
    together = threading.Barrier(count)
    async with asyncio.timeout(PATIENCE):
        answers = await asyncio.gather(*(threads.call(together.wait).answer for _ in range(count)))
    assert sorted(answers) == list(range(count))
    threads.close()


async def test_an_idle_thread_is_used_again_and_ends_after_a_while() -> None:
    threads = Threads("test", idle_seconds=0.05)
    names = {await threads.call(lambda: threading.current_thread().name).answer for _ in range(20)}
    assert len(names) < 20
    await until(lambda: threads.alive == 0)
    assert await threads.call(lambda: 5).answer == 5, "a new one is made"


async def test_closing_ends_idle_threads_at_once_and_busy_ones_after_their_call() -> None:
    threads, release = Threads("test"), threading.Event()
    busy = threads.call(release.wait)
    await threads.call(lambda: None).answer
    threads.close()
    await until(lambda: threads.alive == 1)
    release.set()
    assert await busy.answer is True
    await until(lambda: threads.alive == 0)


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3)])
async def test_whatever_is_raised_reaches_who_waits(error: BaseException) -> None:
    async def ask() -> BaseException | None:
        call = threads.call(fail)
        await asyncio.wait([call.answer])
        return call.answer.exception()

    def fail() -> None:
        raise error

    threads = Threads("test")
    assert await ask() is error
    threads.close()


async def test_a_stop_iteration_does_not_keep_its_caller_waiting() -> None:
    threads = Threads("test")
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.call(lambda: next(iter(()))).answer
    threads.close()


async def test_a_call_runs_in_a_copy_of_the_context_in_which_it_was_made() -> None:
    threads = Threads("test")
    WORD.set("given")

    def change() -> str:
        before = WORD.get()
        WORD.set("changed")
        return before

    assert [await threads.call(change).answer for _ in range(3)] == ["given"] * 3
    assert WORD.get() == "given"
    threads.close()


async def test_a_call_that_nobody_awaits_any_more_still_tells_when_it_is_over() -> None:
    threads, release = Threads("test"), threading.Event()
    call = threads.call(lambda: "done" if release.wait() else "")
    call.answer.cancel()
    over: asyncio.Future[Any] = call.over
    await asyncio.sleep(0)
    assert not over.done()
    release.set()
    assert await over == "done"
    threads.close()


async def test_an_answer_that_comes_in_the_moment_of_a_cancel_is_not_waited_for_again() -> None:
    """Whoever awaits it is cancelled between the answer and its next turn."""

    async def wait() -> str:
        try:
            return await call.answer
        except asyncio.CancelledError:
            return await call.over

    threads, release = Threads("test"), threading.Event()
    call = threads.call(lambda: "done" if release.wait() else "")
    waiting = asyncio.create_task(wait())
    call.answer.add_done_callback(lambda _: waiting.cancel())
    await asyncio.sleep(0)
    release.set()
    async with asyncio.timeout(PATIENCE):
        assert await waiting == "done"
    assert waiting.cancelling() == 1, "it was cancelled, though"
    threads.close()


async def test_where_no_thread_can_be_made_nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads, called = Threads("test"), []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        with pytest.raises(RuntimeError, match="can't start"):
            threads.call(lambda: called.append("refused"))
    assert threads.alive == 0
    await threads.call(lambda: called.append("taken")).answer
    assert called == ["taken"]
    threads.close()


@pytest.mark.slow
def test_a_stuck_thread_does_not_keep_the_interpreter_from_ending() -> None:
    program = (
        "import asyncio, threading\n"
        "from horarium.delivery.threads import Threads\n"
        "async def main():\n"
        "    Threads('x').call(threading.Event().wait)\n"
        "asyncio.run(main())\n"
        "print('ended')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert (done.stdout, done.stderr) == ("ended\n", "")
