"""The batches of a server, as `Client.batches`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from horarium.client.transport import Answer, Transport, segment


class _Page(msgspec.Struct):
    items: list[dict[str, Any]]
    next_cursor: str | None = None


class Batches:
    """Runs whose common end brings something about; docs/batches.md has all fields."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def add(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Make one: `{"name": ..., "runs": [...], "open": True, "on": {"finished": [...]}}`. The batch, with its `id`,
        and the `runs`."""
        return _decode(self._call("POST", "", body=dict(batch), headers=_key()))

    def add_runs(self, id: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Add up to 1,000 runs. The batch, and the `runs`. Raises NotFound, StateConflict for one that is closed."""
        body = {"runs": [dict(run) for run in runs]}
        return _decode(self._call("POST", f"/{segment(id)}/runs", body=body, headers=_key()))

    def get(self, id: str, wait_seconds: float = 0) -> dict[str, Any]:
        """The batch; with `wait_seconds` (up to 60) as soon as it has finished. Raises NotFound."""
        query = {"wait_seconds": str(wait_seconds)} if wait_seconds else {}
        return _decode(self._call("GET", f"/{segment(id)}", query=query))

    def list(self, state: str | None = None) -> Iterator[dict[str, Any]]:
        """Batches, the newest first; with `state` (open, closed, finished) those alone."""
        return self._pages("", {} if state is None else {"state": state})

    def runs(self, id: str) -> Iterator[dict[str, Any]]:
        """The runs of a batch. Raises NotFound."""
        return self._pages(f"/{segment(id)}/runs", {})

    def close(self, id: str) -> dict[str, Any]:
        """No more runs: it finishes once all have ended. Raises NotFound."""
        return _decode(self._call("POST", f"/{segment(id)}/close"))

    def cancel(self, id: str, reason: str | None = None) -> dict[str, Any]:
        """Close it, and cancel its runs that have not ended. Raises NotFound."""
        return _decode(self._call("POST", f"/{segment(id)}/cancel", body={} if reason is None else {"reason": reason}))

    def retry(self, id: str) -> dict[str, Any]:
        """Do its failed runs again. Raises NotFound."""
        return _decode(self._call("POST", f"/{segment(id)}/retry"))

    def _pages(self, path: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        cursor: str | None = None
        while True:
            answer = self._call("GET", path, query=query | ({} if cursor is None else {"cursor": cursor}))
            page = msgspec.json.decode(answer.body, type=_Page)
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def _call(self, method: str, path: str, **how: Any) -> Answer:
        return self._transport.request(method, f"/api/v1/batches{path}", **how)


def _key() -> dict[str, str]:
    """So that a request that is sent again does nothing twice."""
    return {"idempotency-key": uuid4().hex}


def _decode(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(answer.body)
    return found
