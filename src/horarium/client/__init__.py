"""Talking to a Horarium server from Python: `Client` for its API, `Worker` to perform runs.

Needs the standard library and msgspec, nothing of the server's. Both are synchronous and safe to use from many threads.
"""

from __future__ import annotations

from horarium.client.answers import Imported, Report
from horarium.client.api import Client
from horarium.client.claimed import ClaimedRun, Failure
from horarium.client.commands import Commands
from horarium.client.transport import Cut
from horarium.client.worker import Worker

__all__ = ["ClaimedRun", "Client", "Commands", "Cut", "Failure", "Imported", "Report", "Worker"]
