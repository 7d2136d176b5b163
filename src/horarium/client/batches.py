"""The batches of a server, as `Client.batches`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

from horarium.client.transport import Transport, segment


class Batches:
    """Runs whose common end brings something about; docs/batches.md has all fields."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def add(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Make one: `{"name": ..., "runs": [...], "open": True, "on": {"finished": [...]}}`. The batch, with its `id`,
        and the `runs`."""
        return self._transport.call("POST", "/batches", dict[str, Any], body=dict(batch), headers=_key())

    def add_runs(self, id: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Add up to 1,000 runs. The batch, and the `runs`. Raises NotFound, StateConflict for one that is closed."""
        body = {"runs": [dict(run) for run in runs]}
        return self._transport.call("POST", f"{_path(id)}/runs", dict[str, Any], body=body, headers=_key())

    def get(self, id: str, wait_seconds: float = 0) -> dict[str, Any]:
        """The batch; with `wait_seconds` (up to 60) as soon as it has finished. Raises NotFound."""
        query = {"wait_seconds": str(wait_seconds)} if wait_seconds else {}
        return self._transport.call("GET", _path(id), dict[str, Any], query=query)

    def list(self, state: str | None = None) -> Iterator[dict[str, Any]]:
        """Batches, the newest first; with `state` (open, closed, finished) those alone."""
        return self._transport.items("/batches", dict[str, Any], {} if state is None else {"state": state})

    def runs(self, id: str) -> Iterator[dict[str, Any]]:
        """The runs of a batch. Raises NotFound."""
        return self._transport.items(f"{_path(id)}/runs", dict[str, Any], {})

    def close(self, id: str) -> dict[str, Any]:
        """No more runs: it finishes once all have ended. Raises NotFound."""
        return self._transport.call("POST", f"{_path(id)}/close", dict[str, Any])

    def cancel(self, id: str, reason: str | None = None) -> dict[str, Any]:
        """Close it, and cancel its runs that have not ended. Raises NotFound."""
        body = {} if reason is None else {"reason": reason}
        return self._transport.call("POST", f"{_path(id)}/cancel", dict[str, Any], body=body)

    def retry(self, id: str) -> dict[str, Any]:
        """Do its failed runs again. Raises NotFound."""
        return self._transport.call("POST", f"{_path(id)}/retry", dict[str, Any])


def _path(id: str) -> str:
    return f"/batches/{segment(id)}"


def _key() -> dict[str, str]:
    """So that a request that is sent again does nothing twice."""
    return {"idempotency-key": uuid4().hex}
