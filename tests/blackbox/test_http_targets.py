"""HTTP targets: the headers, the signature, what counts as success, callbacks, and addresses that are never called."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.blackbox.outside import Api, Receiver, Server, instant, serving
from tests.waiting import eventually

pytestmark = pytest.mark.slow

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqr"
QUICK = {"attempts_max": 3, "backoff_seconds": 0.2, "backoff_factor": 1}


def call(server: Server, receiver: Receiver, name: str, **more: Any) -> str:
    """A job with an HTTP target, run now; the id of its run."""
    fields = {key: more.pop(key) for key in ("retry", "timeouts") if key in more}
    target = {"type": "http", "url": f"{receiver.url}/{name}", **more}
    server.add(name, 3600, target, **{"retry": QUICK, **fields})
    run: dict[str, Any] = server("POST", f"/jobs/{name}/trigger")
    return str(run["id"])


def test_every_request_says_who_it_is_and_is_signed(server: Server, receiver: Receiver, name: str) -> None:
    run_id = call(server, receiver, name, signing_secret=SECRET, headers={"X-Own": "1"}, body={"a": [1]})
    (request,) = receiver.wait(f"/{name}")
    headers = request.headers
    assert request.method == "POST"
    assert headers["webhook-id"] == headers["idempotency-key"] == headers["horarium-run"] == run_id
    assert (headers["horarium-job"], headers["horarium-attempt"], headers["x-own"]) == (name, "1", "1")
    run = server.becomes(run_id, "completed")
    assert instant(headers["horarium-fire-at"]) == instant(run["fire_at"])
    assert abs(int(headers["webhook-timestamp"]) - request.at) < 60
    assert Webhook(SECRET).verify(request.body, dict(headers)) == {"a": [1]}
    assert (run["result"]["status"], run["result"]["body"]) == (200, "ok")


def test_the_server_s_secret_signs_where_the_job_has_none(receiver: Receiver, store: str, name: str) -> None:
    with serving(store, "--allow-private-targets", "--signing-secret", SECRET) as own:
        call(own, receiver, name)
        (request,) = receiver.wait(f"/{name}")
        assert Webhook(SECRET).verify(request.body, dict(request.headers))["job"] == name


def test_without_a_secret_there_is_no_signature(server: Server, receiver: Receiver, name: str) -> None:
    call(server, receiver, name)
    assert "webhook-signature" not in receiver.wait(f"/{name}")[0].headers


@pytest.mark.parametrize("status", [500, 503, 429, 404, 302])
def test_other_statuses_are_tried_again_with_the_same_id(
    server: Server, receiver: Receiver, name: str, status: int
) -> None:
    elsewhere = {"location": f"{receiver.url}/{name}-elsewhere"}
    receiver.answers[f"/{name}"] = lambda before: (status, elsewhere, b"") if before < 2 else (204, {}, b"")
    run_id = call(server, receiver, name, signing_secret=SECRET)
    requests = receiver.wait(f"/{name}", 3)
    assert {request.headers["webhook-id"] for request in requests} == {run_id}
    assert [request.headers["horarium-attempt"] for request in requests] == ["1", "2", "3"]
    for request in requests:
        Webhook(SECRET).verify(request.body or b"{}", dict(request.headers))
    assert server.becomes(run_id, "completed")["attempt"] == 3
    assert receiver.at(f"/{name}-elsewhere") == [], "a redirect is never followed"


def test_retry_after_is_honoured(server: Server, receiver: Receiver, name: str) -> None:
    receiver.answers[f"/{name}"] = lambda before: (503, {"retry-after": "2"}, b"") if before == 0 else (200, {}, b"")
    call(server, receiver, name)
    first, second = receiver.wait(f"/{name}", 2)
    assert second.at - first.at > 1.9


def test_gone_is_not_tried_again(server: Server, receiver: Receiver, name: str) -> None:
    receiver.answers[f"/{name}"] = lambda _: (410, {}, b"")
    run = server.becomes(call(server, receiver, name), "failed")
    assert (run["attempt"], len(receiver.at(f"/{name}"))) == (1, 1)
    assert "410" in run["error"]


def test_expected_status_decides(server: Server, receiver: Receiver, name: str) -> None:
    receiver.answers[f"/{name}"] = lambda before: (200 if before == 0 else 404, {}, b"")
    run = server.becomes(call(server, receiver, name, expected_status=[404]), "completed")
    assert (run["attempt"], run["result"]["status"]) == (2, 404)


def test_an_answer_that_takes_too_long_is_a_failure(server: Server, receiver: Receiver, name: str) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    try:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        run_id = call(server, receiver, name, url=url, timeout_seconds=0.5, retry={"attempts_max": 1})
        assert "0.5 s" in server.becomes(run_id, "failed")["error"]
    finally:
        silent.close()


def test_an_endless_answer_is_cut(server: Server, receiver: Receiver, name: str) -> None:
    receiver.answers[f"/{name}"] = lambda _: (200, {}, b"x" * 3_000_000)
    result = server.becomes(call(server, receiver, name), "completed")["result"]
    assert result["truncated"] is True
    assert len(result["body"]) <= 65_536


def test_a_method_and_a_body_of_one_s_own(server: Server, receiver: Receiver, name: str) -> None:
    call(server, receiver, name, method="PUT", body="plain")
    (request,) = receiver.wait(f"/{name}")
    assert (request.method, request.body) == ("PUT", b"plain")


def test_a_callback_run_lives_until_its_endpoint_completes_it(server: Server, receiver: Receiver, name: str) -> None:
    receiver.answers[f"/{name}"] = lambda _: (202, {}, b"")
    run_id = call(server, receiver, name, completion="callback")
    (request,) = receiver.wait(f"/{name}")
    token = int(request.headers["horarium-token"])
    report = request.headers["horarium-report-url"]
    assert report.startswith(f"{server.url}/api/v1/runs/{run_id}")
    instant(request.headers["horarium-lease-expires-at"])
    run = server.becomes(run_id, "running")
    beat = server("POST", f"/runs/{run_id}/heartbeat", {"token": token, "progress": {"done": 1}})
    assert beat["cancel_requested"] is False
    assert instant(beat["expires_at"]) > instant(run["started_at"])
    assert server.refused("POST", f"/runs/{run_id}/complete", {"token": token + 1})["status"] == 409
    done = server("POST", f"/runs/{run_id}/complete", {"token": token, "result": {"rows": 3}})
    assert (done["state"], done["result"], done["progress"]) == ("completed", {"rows": 3}, {"done": 1})


def test_a_callback_endpoint_that_falls_silent_loses_the_attempt(server: Server, receiver: Receiver, name: str) -> None:
    receiver.answers[f"/{name}"] = lambda _: (202, {}, b"")
    run_id = call(server, receiver, name, completion="callback", timeouts={"heartbeat_seconds": 9})
    first, second = receiver.wait(f"/{name}", 2)
    assert int(second.headers["horarium-token"]) > int(first.headers["horarium-token"])
    stale = {"token": int(first.headers["horarium-token"])}
    assert server.refused("POST", f"/runs/{run_id}/complete", stale)["code"] == "lease_lost"
    fresh = {"token": int(second.headers["horarium-token"]), "error": "no", "retryable": False}
    assert server("POST", f"/runs/{run_id}/fail", fresh)["state"] == "failed"


def test_a_callback_run_can_be_cancelled(server: Server, receiver: Receiver, name: str) -> None:
    receiver.answers[f"/{name}"] = lambda _: (202, {}, b"")
    run_id = call(server, receiver, name, completion="callback")
    (request,) = receiver.wait(f"/{name}")
    token = {"token": int(request.headers["horarium-token"])}
    server.becomes(run_id, "running")
    assert server("POST", f"/runs/{run_id}/cancel")["state"] == "cancelling"
    assert server("POST", f"/runs/{run_id}/heartbeat", token)["cancel_requested"] is True
    assert server("POST", f"/runs/{run_id}/fail", {**token, "error": "stopped"})["state"] == "cancelled"


# ---- secrets and addresses --------------------------------------------------------------------------------------

INTERNAL = [
    "http://127.0.0.1", "http://0", "http://2130706433", "http://0x7f.1", "http://017700000001", "http://[::1]",
    "http://[::ffff:169.254.169.254]", "http://localhost", "http://localhost.", "http://a@127.0.0.1",
    "http://good.example#@127.0.0.1", "http://[64:ff9b::7f00:1]", "file:///etc/passwd", "gopher://example.com",
    "http://10.0.0.1", "http://169.254.169.254/latest/meta-data", "http://[fd00:ec2::254]", "http://100.64.0.1",
    "http://127。0。0。1", "http://[2002:7f00:1::]", "http://192.168.1.1:8080/x",
    "HTTP://127.1/", "http://0177.0.0.1", "http://127.0.0.1:80\\@example.com/",
]  # fmt: skip


@pytest.fixture(scope="module")
def public_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server with the default: public addresses only."""
    with serving(f"sqlite:///{tmp_path_factory.mktemp('public')}/own.db") as server:
        yield server


@pytest.mark.parametrize("url", INTERNAL)
def test_an_internal_address_is_refused_in_any_spelling(public_only: Api, url: str) -> None:
    job = {"name": "ssrf", "trigger": {"type": "interval", "every_seconds": 60}, "target": {"type": "http", "url": url}}
    for method, path, body in (("POST", "/jobs", job), ("PUT", "/jobs/ssrf", job)):
        problem = public_only.refused(method, path, body)
        assert "target.url" in json.dumps(problem), problem
    public_only("PUT", "/jobs/fine", {**job, "name": "fine", "target": {"type": "http", "url": "http://example.com/"}})
    public_only.refused("PATCH", "/jobs/fine", {"target": {"url": url}})
    assert public_only.ask("GET", "/api/v1/jobs/ssrf").status == 404


def test_a_stored_internal_address_is_refused_at_delivery(receiver: Receiver, store: str, name: str) -> None:
    with serving(store, "--allow-private-targets", "--roles", "api") as lax:
        run_id = call(lax, receiver, name)
    with serving(store) as strict:
        run = strict.becomes(run_id, "failed")
        assert "allow-private-targets" in run["error"]
        assert receiver.at(f"/{name}") == []
        retried = strict("POST", f"/runs/{run_id}/retry")
        strict.becomes(retried["id"], "failed")
    assert receiver.at(f"/{name}") == []


def test_secrets_are_never_shown(receiver: Receiver, store: str, name: str, tmp_path: Path) -> None:
    key, canary = "key-canary-6f1c", "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5"
    flags = ("--allow-private-targets", "--api-key", key, "--signing-secret", SECRET, "--log-level", "debug")
    with serving(store, *flags, key=key) as own:
        bearer = "header-canary-77ab"
        run_id = call(own, receiver, name, signing_secret=canary, headers={"Authorization": f"Bearer {bearer}"})
        own.becomes(run_id, "completed")
        assert receiver.wait(f"/{name}")[0].headers["webhook-signature"].startswith("v1,")
        seen = [
            own.ask("GET", "/api/v1" + path).body for path in (f"/jobs/{name}", "/jobs", f"/runs/{run_id}", "/runs")
        ]
        stored = own("GET", f"/jobs/{name}")
        assert stored["target"]["signing_secret"] not in (None, canary)
        again = own("PUT", f"/jobs/{name}", {**stored, "priority": 1})
        assert again["priority"] == 1
        own("POST", f"/jobs/{name}/trigger")
        request = receiver.wait(f"/{name}", 2)[1]
        Webhook(canary).verify(request.body, dict(request.headers))
        assert request.headers["authorization"] == f"Bearer {bearer}"
        closed = "http://127.0.0.1:1/path?token=query-canary-51c0"
        failing = call(own, receiver, f"{name}.closed", url=closed, retry={"attempts_max": 1})
        seen.append(json.dumps(own.becomes(failing, "failed")).encode())
        bad = own.refused("PATCH", f"/jobs/{name}", {"target": {"signing_secret": canary + "!"}})
        wrong = own.ask("GET", "/api/v1/jobs", headers={"Authorization": f"Bearer {key}x"})
        assert wrong.status == 401
        seen += [json.dumps(bad).encode(), wrong.body]
        seen += [own.ask("GET", path).body for path in ("/metrics", "/docs/openapi.json", "/readyz", "/api/v1/nodes")]
        eventually(lambda: own("GET", "/stats")["queues"] == [])
    seen.append("".join(own.log).encode())
    for secret in (key, canary, SECRET, canary.removeprefix("whsec_"), bearer, "query-canary"):
        assert not [text for text in seen if secret.encode() in text], secret
