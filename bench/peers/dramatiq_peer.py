"""Dramatiq: `python dramatiq_peer.py URL COUNT [THREADS]`. No-op actors in one process, prefetching generously."""

import json
import logging
import os
import sys
import threading
import time

# Read when the worker is made: with less it asks Redis for a few messages at a time.
os.environ.setdefault("dramatiq_queue_prefetch", "1000")

import dramatiq
from dramatiq.brokers.redis import RedisBroker

THREADS = 4


def main(url: str, count: int, threads: int) -> None:
    logging.getLogger("dramatiq").setLevel(logging.ERROR)
    broker = RedisBroker(url=url, namespace="dramatiq-peer")
    broker.flush_all()
    dramatiq.set_broker(broker)
    left, done, lock = [count], threading.Event(), threading.Lock()

    @dramatiq.actor
    def noop(to: str, number: int) -> None:
        with lock:
            left[0] -= 1
            if not left[0]:
                done.set()

    started = time.perf_counter()
    for number in range(count):
        noop.send("somebody", number)
    added = time.perf_counter()
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=threads)
    worker.start()
    assert done.wait(280), f"{left[0]} messages were left"
    ended = time.perf_counter()
    worker.stop()
    broker.flush_all()
    print(json.dumps({"add": count / (added - started), "run": count / (ended - added)}))


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else THREADS)
