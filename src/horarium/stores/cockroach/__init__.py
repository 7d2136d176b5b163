"""The store in CockroachDB: what `cockroachdb://` means.

It is the PostgreSQL store wherever that holds, since both speak the same protocol: this package only says what is done
otherwise. `connect` has the URL and what a session asks for, `session` the queries and how jobs and runs are inserted
without functions of the server, `migrate` a schema that grows by one statement at a time.

The hard thing is that every transaction is serializable and may be given up at any moment: whatever is called here must
be harmless to repeat, and nothing may be read in a transaction that need not be.
"""

from horarium.stores.cockroach.store import CockroachStore

__all__ = ["CockroachStore"]
