"""What follows from ends, and what the audit says of changes, while servers are killed: `on`, webhooks, entries.

    python -m tests.proof.aftermath [--store sqlite|postgres|redis-always|mongo] [--minutes 2] [--seed 1] [--quiet]

Jobs fail every second and tell a webhook and start another job of it; single runs, each of a job of its own, fail at
the same pace and tell a channel that was given no settings; others complete and start one; people change, pause, resume
and trigger further jobs all the time. Servers are killed (`--quiet`: are not). Then the accounts:

    owed      a failed run with no notification or follow-up, or with more than one; one of these that nothing owes
    untold    an event that no message told, however often a message was sent
    chain     an entry of the audit whose `before` is not the `after` of the one before it, or the job as it now is
    silent    a change that was acknowledged, or a run that was asked for, without an entry; an entry without it

Exit status 0 if none was found.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any, Self

from tests.proof.backends import KINDS, start_backend
from tests.proof.harness import PAGE, Api, World
from tests.proof.jobs import LATER, SECOND, http, soon, text
from tests.proof.receiver import instant, micros
from tests.waiting import eventually, let_pass

FAILING, DONE, CHANGED = 5, 3, 4
ONCE_PER_SECOND = 5
"""Single runs that fail."""
FINAL_SECONDS = 120.0
CLIENT_PAUSE_SECONDS = 0.05
EDITED = ("enabled", "labels", "priority")
"""The fields of a job that its owner changes here."""


class _Quiet(ThreadingHTTPServer):
    """Those who call are killed at any moment."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing."""


class Hooks:
    """An endpoint for webhooks. `messages`: by id, when each came first, its channel and its events."""

    def __init__(self) -> None:
        self.messages: dict[str, tuple[int, str, list[dict[str, Any]]]] = {}
        self.requests = 0
        hooks = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                at, body = micros(), self.rfile.read(int(self.headers["content-length"]))
                hooks.requests += 1
                data = json.loads(body)["data"]
                hooks.messages.setdefault(self.headers["webhook-id"], (at, data["channel"], data["events"]))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *told: object) -> None:
                """Nothing."""

        self._server = _Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def told(self, event: str) -> Counter[str]:
        """How many of such events of each job were told, by messages that differ."""
        counts: Counter[str] = Counter()
        for _, _, events in self.messages.values():
            for each in events:
                if each["event"] == event:
                    counts[each["job"]] += each.get("count", 1)
        return counts

    def first_told(self, channel: str) -> dict[str, int]:
        """When the channel was first told of each run that failed."""
        first: dict[str, int] = {}
        for at, to, events in self.messages.values():
            told = {each["run_id"]: at for each in events if each["event"] == "failed" and to == channel}
            first = told | first
        return first


class Client(threading.Thread):
    """A person who changes one job all the time. `acknowledged`: the marks of changes that were answered with yes."""

    def __init__(self, world: World, job: str, seed: int) -> None:
        super().__init__(name=f"client of {job}", daemon=True)
        self.job, self.acknowledged, self.triggered = job, list[str](), list[str]()
        self.over = threading.Event()
        self._world, self._random, self._mark = world, Random(f"{seed} {job}"), 0

    def run(self) -> None:
        while not self.over.wait(CLIENT_PAUSE_SECONDS):
            with suppress(OSError, ValueError):
                self._act(self._random.choice(self._world.nodes).api)

    def _act(self, api: Api) -> None:
        path = f"/api/v1/jobs/{self.job}"
        what = self._random.choice(("mark", "mark", "priority", "pause", "resume", "trigger", "trigger"))
        if what == "mark":
            self._mark += 1
            mark = f"m{self._mark}"
            if api.call("PATCH", path, {"labels": {"mark": mark}}, timeout=5).status == 200:
                self.acknowledged.append(mark)
        elif what == "priority":
            api.call("PATCH", path, {"priority": self._random.randrange(9)}, timeout=5)
        elif what == "trigger":
            answer = api.call("POST", f"{path}/trigger", {}, timeout=5)
            if answer.status in (200, 201, 202):
                self.triggered.append(answer.body["id"])
        else:
            api.call("POST", f"{path}/{what}", timeout=5)


@dataclass
class Account:
    """What was found."""

    violations: list[str] = field(default_factory=list)
    failed: int = 0
    requests: int = 0
    entries: int = 0
    triggered: int = 0
    late_seconds: dict[str, list[float]] = field(default_factory=dict)
    """By channel, from each failure to its message."""

    def must_hold(self) -> None:
        assert not self.violations, f"{len(self.violations)} violations\n" + "\n".join(self.violations[:20])

    def late(self, channel: str, part: float) -> float:
        ordered = sorted(self.late_seconds[channel])
        return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0

    def __str__(self) -> str:
        late = "; ".join(
            f"channel {channel}, from {len(seconds)} failures to the webhook p50 {self.late(channel, 0.5):.3f}"
            f" p99 {self.late(channel, 0.99):.3f} max {max(seconds):.3f} s"
            for channel, seconds in self.late_seconds.items()
            if seconds
        )
        return (
            f"{self.failed} failed runs, {self.requests} webhooks, {self.entries} entries of the audit,"
            f" {self.triggered} runs asked for; {len(self.violations)} violations; {late}"
        )


class Aftermath:
    """The experiment, on a store. `seconds`: for how long jobs fire and people ask."""

    def __init__(self, world: World, hooks: Hooks, seconds: int, seed: int) -> None:
        self._world, self._hooks, self._seconds = world, hooks, seconds
        self._random = Random(seed)
        self._clients = [Client(world, f"changed-{number}", seed) for number in range(CHANGED)]

    def run(self, kill: bool) -> Account:
        """Define, let it go on, settle accounts."""
        self._world.start_nodes(2)
        end = self._define()
        for client in self._clients:
            client.start()
        while micros() < end:
            let_pass(self._random.uniform(0.5, 2.5))
            if kill and micros() < end:
                self._random.choice(self._world.nodes).restart()
        for client in self._clients:
            client.over.set()
            client.join(30)
        for client in self._clients:  # what a pause kept back is no part of this
            self._world.api.must("POST", f"/jobs/{client.job}/pause")
        self._world.wait_over(end, FINAL_SECONDS)
        eventually(self._all_is_told, FINAL_SECONDS, what="the messages")
        return self._account()

    def _define(self) -> int:
        api, url = self._world.api, self._world.receiver.url
        quick = {"type": "webhook", "url": self._hooks.url, "group_seconds": 0, "quiet_seconds": 0, "system": False}
        api.must("PUT", "/channels/hook", quick)
        api.must("PUT", "/channels/usual", {**quick, "group_seconds": 1, "quiet_seconds": 60})
        for name in ("after-failure", "after-success"):
            api.must("PUT", f"/jobs/{name}", {"name": name, "trigger": LATER, "target": http(f"{url}/ok")})
        start = soon(api, FAILING + DONE + CHANGED + ONCE_PER_SECOND * self._seconds)
        end = start + self._seconds * SECOND
        window = {"starts_at": text(start), "ends_at": text(end), "catch_up": {"policy": "all"}}
        often = {"type": "interval", "every_seconds": 1, "anchor": text(start)}
        lease = {"timeouts": {"heartbeat_seconds": 2}}
        for number in range(FAILING):
            on = {"failed": [{"notify": "hook"}, {"trigger": "after-failure"}]}
            job: dict[str, Any] = {
                "trigger": often,
                "target": http(f"{url}/fail/9"),
                "retry": {"attempts_max": 1},
                "on": on,
            }
            api.must("PUT", f"/jobs/failing-{number}", {"name": f"failing-{number}", **job, **window, **lease})
        for number in range(ONCE_PER_SECOND * self._seconds):
            at = start + number * SECOND // ONCE_PER_SECOND
            job = {"trigger": {"type": "once", "at": text(at)}, "target": http(f"{url}/fail/9")}
            job |= {"retry": {"attempts_max": 1}, "on": {"failed": [{"notify": "usual"}]}, **lease}
            api.must("PUT", f"/jobs/single-{number}", {"name": f"single-{number}", **job})
        for number in range(DONE):
            on = {"completed": [{"trigger": "after-success"}]}
            job = {"trigger": often, "target": http(f"{url}/ok"), "retry": {"attempts_max": 20}, "on": on}
            api.must("PUT", f"/jobs/done-{number}", {"name": f"done-{number}", **job, **window, **lease})
        for client in self._clients:
            idle: dict[str, Any] = {
                "name": client.job,
                "trigger": LATER,
                "target": http(f"{url}/ok"),
                "overlap": "buffer_all",
            }
            api.must("PUT", f"/jobs/{client.job}", idle | {"retry": {"attempts_max": 20}, **lease})
        return end

    def _all_is_told(self) -> bool:
        told = self._hooks.told("failed")
        return all(told[job] >= count for job, count in self._failed().items())

    def _failed(self) -> Counter[str]:
        runs = self._world.api.runs("&state=failed")
        return Counter(run["job"] for run in runs if _tells(run))

    # ---- the accounts

    def _account(self) -> Account:
        account = Account(requests=self._hooks.requests)
        runs = self._world.api.runs()
        self._follow_ups(account, runs)
        self._audit(account, runs)
        return account

    def _follow_ups(self, account: Account, runs: Sequence[dict[str, Any]]) -> None:
        failed = {run["id"]: run for run in runs if _tells(run) and run["state"] == "failed"}
        account.failed = len(failed)
        often = sum(run["job"].startswith("failing-") for run in failed.values())
        wanted = Counter(failed.keys())
        notes = [run["payload"]["event"] for run in runs if run["queue"] == "notify"]
        _differ(account, "owed: notification of", wanted, Counter(note["run_id"] for note in notes))
        done = sum((run["job"] or "").startswith("done-") and run["state"] == "completed" for run in runs)
        for job, owed in (("after-failure", often), ("after-success", done)):
            made = sum(run["job"] == job for run in runs)
            if made != owed:
                account.violations.append(f"owed: {owed} runs of {job}, and there are {made}")
        told = self._hooks.told("failed")
        for job, count in Counter(run["job"] for run in failed.values()).items():
            if told[job] < count:
                account.violations.append(f"untold: {count} runs of {job} failed, {told[job]} were told")
        for channel in ("hook", "usual"):
            account.late_seconds[channel] = [
                (at - instant(failed[run_id]["finished_at"])) / SECOND
                for run_id, at in self._hooks.first_told(channel).items()
                if run_id in failed
            ]

    def _audit(self, account: Account, runs: Sequence[dict[str, Any]]) -> None:
        entries = self._entries()
        account.entries = len(entries)
        asked = [entry for entry in entries if entry["action"] == "job.trigger"]
        made = Counter(run["id"] for run in runs if run["cause"] == "manual")
        account.triggered = made.total()
        _differ(account, "silent: run asked for", made, Counter(entry["after"]["run_id"] for entry in asked))
        for client in self._clients:
            lost = set(client.triggered) - made.keys()
            account.violations += (f"silent: run {run_id} was acknowledged, and is not there" for run_id in lost)
            own = [
                each for each in entries if each["object"] == f"job/{client.job}" and each["action"] != "job.trigger"
            ]
            self._chain(account, client, own)

    def _chain(self, account: Account, client: Client, entries: Sequence[dict[str, Any]]) -> None:
        """Each entry begins where the one before it ended, and the last one ends where the job is."""
        now = _edited(self._world.api.must("GET", f"/jobs/{client.job}"))
        known: dict[str, Any] | None = None
        marks = Counter[str]()
        for entry in sorted(entries, key=lambda each: each["after"]["version"]):
            before, after = _edited(entry.get("before") or {}), _edited(entry["after"])
            if known is not None and before != known:
                account.violations.append(
                    f"chain: {client.job}: {entry['id']} begins with {_edited(before)}, not {known}"
                )
            if known is None or known["labels"] != after["labels"]:
                marks[after["labels"].get("mark", "")] += 1
            known = after
        if known != now:
            account.violations.append(f"chain: {client.job} is {now}, the last entry says {known}")
        for mark in client.acknowledged:
            if marks[mark] != 1:
                account.violations.append(f"silent: {client.job}: {mark} was acknowledged, with {marks[mark]} entries")

    def _entries(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = self._world.api.must("GET", f"/audit?limit={PAGE}{cursor}")
            found += page["items"]
            if page["next_cursor"] is None:
                return found
            cursor = f"&cursor={page['next_cursor']}"


def _tells(run: dict[str, Any]) -> bool:
    """Whether a channel is told if this run fails."""
    return (run["job"] or "").startswith(("failing-", "single-"))


def _edited(job: dict[str, Any]) -> dict[str, Any]:
    return {name: job.get(name) for name in EDITED} | {"labels": job.get("labels") or {}}


def _differ(account: Account, what: str, wanted: Counter[str], found: Counter[str]) -> None:
    for key in wanted.keys() | found.keys():
        if wanted[key] != found[key]:
            account.violations.append(f"{what} {key}: {wanted[key]} owed, {found[key]} there")


def settle(kind: str, folder: Path, seconds: int, seed: int, *, kill: bool = True) -> Account:
    """The whole of it on a store of this kind."""
    with ExitStack() as stack:
        backend = start_backend(kind, folder, stack)
        hooks = stack.enter_context(Hooks())
        world = stack.enter_context(World(backend.url, seed))
        return Aftermath(world, hooks, seconds, seed).run(kill)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.aftermath", description=__doc__)
    parser.add_argument("--store", default="sqlite", help=", ".join(KINDS))
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quiet", action="store_true", help="nothing is killed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="horarium-proof-") as folder:
        account = settle(given.store, Path(folder), round(given.minutes * 60), given.seed, kill=not given.quiet)
    print(f"{given.store}, {given.minutes:g} min, seed {given.seed}{', quiet' if given.quiet else ''}: {account}")
    print("\n".join(account.violations[:20]))
    return 1 if account.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
