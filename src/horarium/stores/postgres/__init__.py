"""The store in PostgreSQL: many nodes, one database; what `postgresql://` means.

`store` answers the port; the functions that it calls (`jobs`, `runs`, `claim`) work on a `Session`: a connection inside
a call, with the names behind the numbers. `pool` keeps connections and carries calls out, `connect` is the only
module that knows the driver and its errors, `rows` turns values into columns and back, `migrate` keeps the schema, and
all SQL is in `queries.sql`. `PostgresSignal` (LISTEN/NOTIFY) is separate and optional.
"""

from horarium.stores.postgres.signal import PostgresSignal
from horarium.stores.postgres.store import PostgresStore

__all__ = ["PostgresSignal", "PostgresStore"]
