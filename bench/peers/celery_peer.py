"""Celery on Redis: `python celery_peer.py URL COUNT`. No-op tasks, one thread, prefetching generously."""

import json
import logging
import sys
import threading
import time

from celery import Celery  # type: ignore[import-not-found]
from celery.contrib.testing.worker import start_worker  # type: ignore[import-not-found]

PREFETCH = 1000


def main(url: str, count: int) -> None:
    app = Celery("noop", broker=url)
    app.conf.update(
        task_ignore_result=True, worker_prefetch_multiplier=PREFETCH, worker_enable_remote_control=False,
        broker_connection_retry_on_startup=True, task_default_queue="celery-peer",
    )  # fmt: skip
    logging.disable(logging.CRITICAL)
    left, done = [count], threading.Event()

    @app.task(name="noop")
    def noop(to: str, number: int) -> None:
        left[0] -= 1
        if not left[0]:
            done.set()

    started = time.perf_counter()
    with app.producer_pool.acquire() as producer:
        for number in range(count):
            noop.apply_async(("you", number), producer=producer)
    added = time.perf_counter()
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        assert done.wait(280), f"{left[0]} tasks were left"
        ended = time.perf_counter()
    print(json.dumps({"add": count / (added - started), "run": count / (ended - added)}), flush=True)


main(sys.argv[1], int(sys.argv[2]))
