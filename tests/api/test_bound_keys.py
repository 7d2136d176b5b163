"""A key that is bound to queues or labels sees and touches these alone: each route is asked, with all that others have.

The table of routes is the one of the code; a route that changes something and has no request here fails the test. What
others have is full of a word, which may appear in no answer: not in a place to go on from, either.
"""

from __future__ import annotations

import asyncio
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from horarium.model import Job, Run, State
from horarium.operations.bounds import reaching
from horarium.ports import JobFilter, RunFilter
from horarium.testing.values import NOW, a_run
from tests.waiting import until

from .conftest import Api, Reply, a_definition

ADMIN = {"authorization": "Bearer first-key-1234"}
SECRET = "zanzibar"
"""In all that others have."""
HANDED_OVER = "from pull/zanzibar-jobs to pull/ours: the job's target was changed"
"""In the history of a run that waited when its job was moved to our queue: it is ours now, and that is how it came."""
OURS, THEIRS = "ours", f"{SECRET}-jobs"
EVERY_ROLE = ["viewer", "operator", "editor", "worker"]
SOME_ID = "01939a00-0000-7000-8000-000000000000"


class Two:
    """A system with two queues, each of which has jobs and runs in every state, and the key of one: bound to its queue,
    or to its label."""

    def __init__(self, by: str = "queues") -> None:
        self.by = by
        self.api = Api(api_keys=["first-key-1234"], pages=True)
        self.runs: dict[str, str] = {}
        self.key: dict[str, str] = {}
        self.token = ""

    async def admin(self, method: str, path: str, body: Any = None) -> Any:
        reply = await self.api.send(method, path, body, headers=ADMIN)
        assert reply.status < 300, (method, path, reply.body)
        return reply.json if reply.body else None

    async def set_up(self) -> None:
        for queue, word in ((THEIRS, SECRET), (OURS, "plain")):
            await self._fill(queue, word)
        labels = {"a": SECRET, "team": f"{SECRET}-team"}
        moved = a_definition("moved", target=_target(THEIRS, SECRET), trigger=_every(3600), labels=labels)
        await self.admin("POST", "/jobs", moved)
        self.api.clock.advance(3600)
        run = await self.admin("POST", "/jobs/moved/trigger", {"payload": {SECRET: 1}})
        self.runs["of a job that was moved"] = run["id"]
        await self._claim(THEIRS, 20)
        late = {"target": _target(THEIRS, SECRET), "payload": SECRET, "labels": labels}
        self.runs["late"] = (await self.admin("POST", "/runs", late))["id"]
        await self.admin("PUT", "/jobs/moved", a_definition("moved", target=_target(OURS, "p"), trigger=_every(3600)))
        asked: dict[str, Any] = {"name": "bound", "roles": EVERY_ROLE, "queues": [OURS]}
        if self.by == "labels":
            asked = {"name": "bound", "roles": EVERY_ROLE[:-1], "labels": {"team": "plain-team"}}
        self.token = (await self.admin("POST", "/keys", asked))["key"]
        self.key = {"authorization": f"Bearer {self.token}"}

    async def _fill(self, queue: str, word: str) -> None:
        labels = {word: word, "team": f"{word}-team"}
        shared = {"concurrency": {"key": "shared", "max": 1}, "labels": labels, "title": f"The {word}"}
        for number in range(3):
            job = a_definition(f"{word}-{number}", target=_target(queue, word), trigger=_every(600 + number), **shared)
            await self.admin("POST", "/jobs", job)
        await self.admin("PATCH", f"/jobs/{word}-1", {"labels": {"then": word}, "priority": 3})
        await self.admin("POST", f"/jobs/{word}-2/pause", {"reason": word})
        one = {"target": _target(queue, word), "payload": {word: word}, "labels": labels}
        for state in ("pending", "failed", "completed", "cancelled"):
            run = await self.admin("POST", "/runs", {**one, "unique_key": f"{word}-{state}"})
            self.runs[f"{queue} {state}"] = run["id"]
            if state == "cancelled":
                await self.admin("POST", f"/runs/{run['id']}/cancel", {"reason": word})
        on = {"finished": [{"trigger": f"{word}-0"}]}
        made = {
            "name": word,
            "runs": [{"target": _target(queue, word), "delay_seconds": 86400}],
            "open": True,
            "on": on,
        }
        self.runs["batch" if queue == THEIRS else "our batch"] = (await self.admin("POST", "/batches", made))["id"]
        for claimed, state in zip(await self._claim(queue, 3), ("", "fail", "complete"), strict=True):
            token = claimed["lease"]["token"]
            line = {"stream": "stdout", "text": f"{word} {word}"}
            await self.admin("POST", f"/runs/{claimed['id']}/log", {"token": token, "lines": [line]})
            self.runs[f"{queue} claimed {state}"] = claimed["id"]
            if state:
                end = {"error": word, "retryable": False} if state == "fail" else {"result": {word: word}}
                await self.admin("POST", f"/runs/{claimed['id']}/{state}", {"token": token, **end})
        self.api.clock.advance(1_300)

    async def _claim(self, queue: str, limit: int) -> list[dict[str, Any]]:
        asked = {"queues": [queue], "limit": limit, "worker": f"worker of {queue}"}
        found: list[dict[str, Any]] = (await self.admin("POST", "/runs/claim", asked))["runs"]
        return found

    async def theirs(self) -> tuple[list[Job | None], list[Run]]:
        """All that the others have; of runs, not those of the job that was moved: they follow it."""
        jobs = (await self.api.store.list_jobs(JobFilter(), None, 200)).items
        runs = (await self.api.store.list_runs(RunFilter(queue=f"pull/{THEIRS}"), None, 200)).items
        return [job for job in jobs if SECRET in job.queue], [run for run in runs if run.job != "moved"]


def _target(queue: str, word: str) -> dict[str, Any]:
    return {"type": "queue", "queue": queue, "payload": {"for": [word]}}


def _every(seconds: int) -> dict[str, Any]:
    return {"type": "interval", "every_seconds": seconds}


@pytest.fixture
async def two() -> Two:
    made = Two()
    await made.set_up()
    return made


@pytest.fixture(params=["queues", "labels"])
async def either(request: pytest.FixtureRequest) -> Two:
    made = Two(request.param)
    await made.set_up()
    return made


PAST = {"fire_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:01Z", "state": "completed"}


def _of_batches(ours: Any, new_run: Any) -> dict[str, list[Any]]:
    follows = {"completed": [{"trigger": f"{SECRET}-0"}]}
    held = {"target": ours, "unique_key": f"{SECRET}-failed"}
    return {
        "POST /batches": [{"runs": [new_run]}, {"runs": [held]}, {"on": follows}],
        "POST /batches/{id}/runs": [{"runs": [{"target": ours}]}, {"runs": [new_run]}],
        **{f"POST /batches/{{id}}/{what}": [None] for what in ("close", "cancel", "retry")},
    }


def bodies(what: str, name: str, run: str, by: str) -> list[Any]:
    """What is sent to a route, to see and to change as much as one can."""
    ours = _target(OURS, "x")
    theirs = {"target": _target(THEIRS, "x")} if by == "queues" else {"labels": {"team": f"{SECRET}-team"}}
    follows = {"completed": [{"trigger": f"{SECRET}-0", "payload": "result"}]}
    job = {"trigger": _every(60), "target": ours}
    ids, new_run = {"ids": [run]}, {"target": ours, **theirs}
    sent: dict[str, list[Any]] = {
        "POST /jobs": [{"name": name, **job}, {"name": "n", **job, **theirs},
                       {"name": "n2", **job, "on": follows},
                       {"name": "n3", **job, "on": {"failed": [{"trigger": "-"}]}}],
        "PUT /jobs/{name}": [job, {**job, **theirs}, {**job, "on": follows}],
        "PATCH /jobs/{name}": [{"enabled": False}, theirs, {"on": follows}],
        "DELETE /jobs/{name}": [None], "POST /attention/reopen": [{"cause": f"failing/{name}"}],
        "POST /jobs/{name}/trigger": [{}],
        "POST /jobs/{name}/backfill": [{"start": "2026-01-01T00:00:00Z", "end": "2030-01-01T00:00:00Z"}],
        "POST /jobs/{name}/pause": [{"reason": "x"}], "POST /jobs/{name}/resume": [None],
        "POST /approvals/{id}": [{"decision": "approve"}, {"decision": "reject"}],
        "POST /jobs/{name}/fires/{instant}/skip": [{"reason": "x"}],
        "POST /jobs/{name}/fires/{instant}/move": [{"to": "2030-01-01T00:00:00Z"}],
        "DELETE /jobs/{name}/fires/{instant}": [None],
        "POST /jobs/{name}/revert": [{"version": 1}],
        "POST /import": [{"jobs": [{"name": name, **job}, {"name": "m", **job, "on": follows}]}],
        "POST /plans": [
            {"documents": {"jobs": [{"name": name, **job}, {"name": "m", **job, **theirs}]}},
            {"documents": {"jobs": [{"name": "m", **job}]}, "prune": {"labels": {"team": f"{SECRET}-team"}}},
            {"documents": {"calendars": [{"name": "c"}]}},
        ],
        "POST /plans/{id}/apply": [{}],
        "POST /feeds": [{"name": name, "jobs": [name]}, {"name": "f"}],
        "DELETE /feeds/{name}": [None],
        "POST /preview": [{"trigger": _every(60)}],
        "POST /runs": [new_run, {"target": ours, "unique_key": f"{SECRET}-pending"}],
        "POST /runs/batch": [{"runs": [new_run, {"target": ours, "unique_key": f"{SECRET}-failed"}]}],
        **_of_batches(ours, new_run),
        "POST /runs/retry": [ids, {"state": ["failed"]}, {"queue": THEIRS}, {"job": name}],
        "POST /runs/cancel": [ids, {"state": ["pending", "running"]}, {"queue": THEIRS}, {"job": name}],
        "POST /runs/{id}/cancel": [{"reason": "x"}], "POST /runs/{id}/retry": [None],
        "POST /runs/claim": [{"queues": [THEIRS], "worker": "w"}, {"queues": [OURS, THEIRS], "worker": "w"},
                             {"queues": [OURS], "worker": "w", "limit": 100}],
        "POST /runs/settle": [[{"id": run, "token": 1, "outcome": "completed"}]],
        "POST /runs/{id}/heartbeat": [{"token": 1, "progress": 1}],
        "POST /runs/{id}/complete": [{"token": 1}],
        "POST /runs/{id}/fail": [{"token": 1, "error": "x"}],
        "POST /runs/{id}/log": [{"token": 1, "lines": [{"stream": "stdout", "text": "x"}]}],
        "POST /keys": [{"name": "k", "roles": ["admin"]}],
        "DELETE /keys/{name}": [None], "DELETE /sessions/{session}": [None],
        "PUT /calendars/{name}": [{}, {"holidays": ["2027-01-01"]}],
        "DELETE /calendars/{name}": [None], "DELETE /rates/{key}": [None],
        "POST /holds": [{"scope": {"all": True}, "reason": "x"}, {"scope": {"queue": THEIRS}, "reason": "x"},
                        {"scope": {"job": name}, "reason": "x"}],
        "PATCH /holds/{id}": [{"reason": "x"}],
        "DELETE /holds/{id}": [None],
        "PUT /rates/{key}": [{"max": 5, "per_seconds": 1}], "PUT /queues/{queue}": [{"fair_weights": {"a": 2}}],
        "PUT /channels/{name}": [{"type": "webhook", "url": "https://example.org/"}], "DELETE /channels/{name}": [None],
        "POST /channels/{name}/test": [None], "POST /channels/{name}/send-by": [{"by": "m"}],
        "POST /attention/acknowledge": [{"cause": f"failing/{name}", "reason": "x"}],
        "POST /jobs/{name}/history": [{"system": "x", "runs": [PAST]}],
    }  # fmt: skip
    return sent[what]


QUERIES = {
    "GET /jobs": ("", "?limit=1", "?prefix=z", f"?label={SECRET}={SECRET}", "?finished=any&enabled=false"),
    "GET /runs": ("", "?limit=1", f"?queue={THEIRS}", f"?job={SECRET}-0", "?state=failed,cancelled", "?job=moved"),
    "GET /upcoming": ("", "?limit=1", "?until=2200-01-01T00:00:00Z"),
    "GET /forecast": ("", "?by=job", f"?by=label:{SECRET}", "?by=host"),
    "GET /jobs/{name}/explain": ("", "?since=2026-01-01T00:00:00Z&until=2030-01-01T00:00:00Z&limit=200"),
    "GET /jobs/{name}/versions": ("", "?limit=1"),
}


def requests(what: str, run_ids: dict[str, str], by: str) -> Iterator[tuple[str, Any]]:
    """The addresses of a route and what to send to each."""
    method, _, path = what.partition(" ")
    for name in (f"{SECRET}-0", f"{SECRET}-1", f"{SECRET}-2", "moved", "plain-0") if "{name}" in path else ("",):
        of_batch = (run_ids["batch"],)
        some = of_batch if path.startswith("/batches") else run_ids.values()
        for run in some if "{id}" in path or "/runs" in path else (SOME_ID,):
            at = path.replace("{name}", name).replace("{id}", run).replace("{instant}", "2029-01-01T00:00:00Z")
            for body in [None] if method == "GET" else bodies(what, name or f"{SECRET}-0", run, by):
                for query in QUERIES.get(what, ("",)):
                    yield at + query, body


def shown(reply: Reply) -> str:
    """All that an answer says; what its places hide, too."""
    text = reply.body.decode() + str(reply.headers)
    for place in re.findall(r'"next_cursor":"([^"]+)"', text):
        text += urlsafe_b64decode(place + "==").decode()
    return text


async def follow(two: Two, method: str, url: str, body: Any) -> list[Reply]:
    """The answer; of a list, those of all its pages."""
    gone = asyncio.Event()
    if url in ("/events", "/runs/claim"):  # they wait
        gone.set()
    replies = [await two.api.send(method, url, body, headers=two.key, hang_up=gone)]
    while method == "GET" and replies[-1].status == 200 and b'"next_cursor":"' in replies[-1].body:
        more = replies[-1].json["next_cursor"]
        joint = "&" if "?" in url else "?"
        place = "after" if url.partition("?")[0].endswith("/log") else "cursor"
        replies.append(await two.api.get(f"{url}{joint}{place}={more}", headers=two.key))
        if len(replies) > 50 or (place == "after" and not replies[-1].json["items"]):
            break
    return replies


def table(api: Api) -> list[str]:
    """Each route of the API."""
    return sorted(
        f"{route.methods[0]} {route.path.removeprefix('/api/v1')}"
        for route in api.app.routes
        if route.path.startswith("/api/")
    )


@pytest.mark.slow
async def test_no_route_shows_or_changes_what_others_have(either: Two) -> None:
    before = await either.theirs()
    assert len(before[0]) == 3
    assert {State.PENDING, State.RUNNING, State.COMPLETED, State.FAILED} <= {run.state for run in before[1]}
    asked = 0
    # Those that change what is ours come last, so that there is something to see.
    for what in sorted(
        table(either.api), key=lambda what: (not what.startswith("GET"), what.startswith("DELETE"), what)
    ):
        method, _, _ = what.partition(" ")
        for url, body in requests(what, either.runs, either.by):
            for reply in await follow(either, method, url, body):
                asked += 1
                known = re.findall(rf"{SECRET}-\w+", f"{url} {body}")
                told = shown(reply).replace(HANDED_OVER, "")
                for word in known:
                    told = told.replace(word, "")
                assert SECRET not in told, (what, url, body, reply.status, told)
                assert reply.status < 500, (what, url, body, reply.body)
    assert asked > 500
    assert await either.theirs() == before
    jobs = {name for job in (await either.api.store.list_jobs(JobFilter(), None, 200)).items for name in [job.name]}
    assert not jobs & {"n", "n2", "n3", "m"}


async def test_what_is_its_own_is_there(two: Two) -> None:
    async def get(path: str) -> Any:
        reply = await two.api.get(path, headers=two.key)
        assert reply.status == 200, reply.body
        return reply.json

    assert {job["name"] for job in (await get("/jobs"))["items"]} == {"moved", "plain-0", "plain-1", "plain-2"}
    ours = (await two.api.store.list_runs(RunFilter(queue=f"pull/{OURS}"), None, 200)).items
    assert [run["id"] for run in (await get("/runs"))["items"]] == [run.id for run in ours]
    stats = await get("/stats")
    assert ([queue["queue"] for queue in stats["queues"]], "jobs" in stats) == ([f"pull/{OURS}"], False)
    ahead = {item["job"] for item in (await get("/upcoming?until=2030-01-01T00:00:00Z"))["items"]}
    assert ahead == {"moved", "plain-0", "plain-1"}
    assert [line["text"] for line in (await get(f"/runs/{two.runs[f'{OURS} claimed ']}/log"))["items"]] == [
        "plain plain"
    ]
    told = await get("/jobs/moved/explain?since=2026-01-01T00:00:00Z&until=2030-01-01T00:00:00Z")
    assert told["items"]
    assert [each["definition"]["target"]["queue"] for each in (await get("/jobs/moved/versions"))["items"]] == [OURS]
    allowed = {
        "name": "new",
        "trigger": _every(60),
        "target": _target(OURS, "x"),
        "on": {"failed": [{"trigger": "plain-0"}]},
    }
    reply = await two.api.post("/jobs", allowed, headers=two.key)
    assert reply.status == 201, reply.body
    # What another wrote stays, though the caller could not have written it.
    await two.admin("PATCH", "/jobs/new", {"on": {"completed": [{"trigger": f"{SECRET}-0"}]}})
    reply = await two.api.send(
        "PATCH", "/jobs/new", {"priority": 5}, headers={**two.key, "content-type": "application/merge-patch+json"}
    )
    assert reply.status == 200, reply.body


async def test_what_has_its_labels_is_there_and_gets_them() -> None:
    two = Two("labels")
    await two.set_up()

    async def get(path: str) -> Any:
        reply = await two.api.get(path, headers=two.key)
        assert reply.status == 200, reply.body
        return reply.json

    ours = {"plain-0", "plain-1", "plain-2"}
    assert {job["name"] for job in (await get("/jobs"))["items"]} == ours
    assert (await get("/me"))["labels"] == [{"team": "plain-team"}]
    runs = (await get("/runs"))["items"]
    states = [f"{OURS} {state}" for state in ("pending", "failed", "completed", "cancelled", "claimed ")]
    assert {two.runs[state] for state in states} <= {run["id"] for run in runs}
    assert all(run["job"] in ours or run["labels"]["team"] == "plain-team" for run in runs)
    stats = await get("/stats")
    assert ([queue["queue"] for queue in stats["queues"]], stats["jobs"]) == ([f"pull/{OURS}"], 3)
    counted = stats["queues"][0]
    assert counted["due"] + counted["scheduled"] + counted["running"] == sum(
        run["state"] in ("pending", "running") for run in runs
    )
    assert {item["job"] for item in (await get("/upcoming?until=2030-01-01T00:00:00Z"))["items"]} == ours - {"plain-2"}

    async def post(path: str, body: Any, status: int) -> Any:
        reply = await two.api.post(path, body, headers=two.key)
        assert reply.status == status, reply.body
        return reply.json

    job = {"name": "new", "trigger": _every(60), "target": _target(THEIRS, "x")}
    assert (await post("/jobs", job, 201))["labels"] == {"team": "plain-team"}
    assert (await post("/runs", {"target": _target(THEIRS, "x")}, 201))["labels"] == {"team": "plain-team"}
    assert (
        "bound to the labels team=plain-team"
        in (await post("/runs", {"target": _target(OURS, "x"), "labels": {"team": "other"}}, 403))["detail"]
    )
    put = await two.api.send("PUT", "/jobs/new", {**job, "priority": 2}, headers=two.key)
    assert put.json["labels"] == {"team": "plain-team"}
    hold = await post("/holds", {"scope": {"labels": {"of": "ours"}}, "reason": "x"}, 201)
    assert hold["scope"]["labels"] == {"of": "ours", "team": "plain-team"}
    await two.admin("POST", "/holds", {"scope": {"labels": {"team": f"{SECRET}-team"}}, "reason": SECRET})
    assert [each["id"] for each in (await get("/holds"))["items"]] == [hold["id"]]
    await post("/holds", {"scope": {"all": True}, "reason": "x"}, 403)
    again = await post("/jobs/plain-0/trigger", None, 201)
    assert (await get(f"/runs/{again['id']}"))["job"] == "plain-0"
    await post("/jobs/moved/trigger", None, 404)
    refused = await two.api.post("/import", {"jobs": [{**job, "name": "moved"}]}, headers=two.key)
    assert refused.json[0]["problem"]["code"] == "forbidden"


async def test_keys_that_can_not_be_bound(two: Two) -> None:
    for asked in (
        {"roles": ["admin"], "labels": {"team": "a"}},
        {"roles": ["worker"], "labels": {"team": "a"}},
        {"roles": ["viewer"], "labels": {}},
    ):
        reply = await two.api.post("/keys", {"name": "k", **asked}, headers=ADMIN)
        assert reply.status == 422, reply.body


@pytest.mark.parametrize("limit", [1, 2, 200])
async def test_lists_go_on_where_only_others_are(two: Two, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number of jobs is looked at; a page may be empty, and the place after it says nothing."""
    monkeypatch.setattr(reaching, "PAGE_MAX", 1)
    monkeypatch.setattr(reaching, "JOBS_LOOKED_AT", 2)
    for number in range(5):
        await two.admin("POST", "/jobs", a_definition(f"n-{SECRET}-{number}", target=_target(THEIRS, "x")))
    found: list[str] = []
    places: list[str] = []
    url = f"/jobs?limit={limit}"
    while True:
        reply = await two.api.get(url, headers=two.key)
        found += [job["name"] for job in reply.json["items"]]
        assert SECRET not in shown(reply)
        if reply.json["next_cursor"] is None:
            break
        places.append(reply.json["next_cursor"])
        url = f"/jobs?limit={limit}&cursor={places[-1]}"
    assert found == ["moved", "plain-0", "plain-1", "plain-2"]
    sealed = next(place for place in places if "~" in urlsafe_b64decode(place + "==").decode())
    other = sealed[:-6] + ("A" if sealed[-6] != "A" else "B") + sealed[-5:]
    begun = (await two.api.get(f"/jobs?cursor={other}", headers=two.key)).json["items"]
    assert [job["name"] for job in begun] == ["moved"]
    # Another node goes on from there, and no one who sees all does.
    assert (await two.api.get(f"/jobs?cursor={sealed}", headers=ADMIN)).code == "invalid_cursor"


async def test_runs_of_several_queues_are_one_list() -> None:
    api = Api(api_keys=["first-key-1234"])
    queues = ["a", "b", "c"]
    runs = [a_run(number, queue=f"pull/{queues[number % 3]}", due_at=NOW) for number in range(30)]
    await api.store.add_runs(runs)
    asked = {"name": "k", "roles": ["viewer"], "queues": ["a", "c", "none"]}
    key = {"authorization": f"Bearer {(await api.post('/keys', asked, headers=ADMIN)).json['key']}"}
    for limit in (1, 4, 7, 200):
        found: list[str] = []
        place = ""
        while True:
            page = (await api.get(f"/runs?limit={limit}{place}", headers=key)).json
            assert len(page["items"]) <= limit
            found += [run["id"] for run in page["items"]]
            if page["next_cursor"] is None:
                break
            place = f"&cursor={page['next_cursor']}"
        assert found == sorted((run.id for run in runs if run.queue != "pull/b"), reverse=True)


async def test_events_say_that_something_changed_and_nothing_more(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horarium.services.polling.news.LOOK_SECONDS", 0.01)
    gone, seen, titles = asyncio.Event(), list[bytes](), count()
    listening = asyncio.create_task(two.api.get("/events", headers=two.key, hang_up=gone, seen=seen))

    async def is_told() -> bool:
        await two.admin("PATCH", f"/jobs/{SECRET}-0", {"title": f"{SECRET} {next(titles)}"})
        return any(b"jobs" in piece for piece in seen)

    await until(is_told)
    gone.set()
    reply = await listening
    assert reply.status == 200
    assert SECRET not in shown(reply)
