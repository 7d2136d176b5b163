"""The store in one SQLite file: the embedded default, and what `sqlite:///path.db` means.

`store` answers the port by handing functions to two threads (`writer`): one writes, in groups that share a commit, one
reads. The functions (`jobs`, `runs`, `claim`) work on a `Session`: a connection that knows the numbers behind names.
`rows` turns values into columns and back, `connect` opens files and translates SQLite's errors, `migrate` keeps the
schema, and all SQL is in `queries.sql`.
"""

from horarium.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
