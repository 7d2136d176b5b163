"""Parameters of store URLs for the contract: a machine that stands still for a while is no outage there."""

from __future__ import annotations

POSTGRES = "?connect_seconds=60&query_seconds=60"
REDIS = "?timeout=60"
MONGO = "&serverSelectionTimeoutMS=60000&connectTimeoutMS=60000&waitQueueTimeoutMS=60000"
