"""Traces: from who asked for a run, by its attempt, to the endpoint's own span; received as OTLP."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.blackbox.outside import Receiver, Server, serving
from tests.waiting import eventually

pytestmark = pytest.mark.slow

TRACE, ASKER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{ASKER}-01"}


class Collector:
    """Receives spans, as a collector does."""

    def __init__(self) -> None:
        spans: list[Any] = []
        self.spans = spans

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
                for each in request.resource_spans:
                    for scope in each.scope_spans:
                        spans.extend(scope.spans)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, run_id: str) -> list[Any]:
        """The spans of a run, by name."""
        found = [span for span in self.spans if ("horarium.run.id", run_id) in _attributes(span)]
        return sorted(found, key=lambda span: span.name)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def _attributes(span: Any) -> list[tuple[str, str]]:
    return [(each.key, each.value.string_value) for each in span.attributes]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("traces")
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with serving(f"sqlite:///{folder}/horarium.db", "--allow-private-targets", env=env) as server:
        yield server


def test_one_trace_from_the_trigger_to_the_endpoint(server: Server, collector: Collector, receiver: Receiver) -> None:
    server.add("hook", 86_400, {"type": "http", "url": f"{receiver.url}/hook"})
    run = server("POST", "/jobs/hook/trigger", headers=TRACEPARENT)
    (request,) = receiver.wait("/hook")
    version, trace, parent, flags = request.headers["traceparent"].split("-")
    assert (version, trace, flags) == ("00", TRACE, "01")
    (span,) = eventually(lambda: collector.of(run["id"]), what="the span of the attempt")
    assert (span.name, span.trace_id.hex(), span.span_id.hex()) == ("run hook", TRACE, parent)
    assert span.parent_span_id.hex() == ASKER
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in span.links] == [(TRACE, ASKER)]
    assert span.end_time_unix_nano > span.start_time_unix_nano


def test_a_scheduled_run_is_linked_to_its_plan_and_each_attempt_has_a_span(
    server: Server, collector: Collector
) -> None:
    server.add("often", 1, {"type": "queue", "queue": "traced"}, retry={"attempts_max": 2, "backoff_seconds": 0})
    parents = []
    ids = set()
    for _ in range(2):
        (claimed,) = server.claim("traced")
        server("POST", "/jobs/often/pause")
        ids.add(claimed["id"])
        parents.append(claimed["traceparent"].split("-"))
        failure = {"token": claimed["lease"]["token"], "error": "no paper"}
        server("POST", f"/runs/{claimed['id']}/fail", failure)
    (id,) = ids
    plan, *attempts = eventually(lambda: len(found := collector.of(id)) == 3 and found, what="all spans")
    assert plan.name == "plan often"
    assert {each.trace_id for each in attempts} == {plan.trace_id}
    assert {each.span_id.hex() for each in attempts} == {parent[2] for parent in parents}
    assert {link.span_id for each in attempts for link in each.links} == {plan.span_id}
    assert {each.status.message for each in attempts} == {"no paper"}
