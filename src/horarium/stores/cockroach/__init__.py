"""The store in CockroachDB: what `cockroachdb://` means.

It is the PostgreSQL store where that works, since both speak the same protocol: this package holds only the
differences. `connect` has the URL and what a session asks for, `session` the queries and how jobs and runs are inserted
without functions of the server, `migrate` a schema that grows by one statement at a time.

Every transaction is serializable and may be rolled back at any moment: every call here must be safe to repeat, and
reads that need no transaction stay outside of one.
"""

from horarium.stores.cockroach.store import CockroachStore

__all__ = ["CockroachStore"]
