"""The store in MongoDB: what `mongodb://` and `mongodb+srv://` mean. It needs a replica set of at least one node.

`store` answers the port; the functions that do the work (`jobs`, `runs`, `claim`, `stats`) work on a `Session`: the
collections of one database, seen through one namespace. `queries` holds every filter and every pipeline, `rows` turns
values into documents and back, `indexes` and `migrate` keep the schema, `connect` alone knows the driver.
"""

from horarium.stores.mongo.signal import MongoSignal
from horarium.stores.mongo.store import MongoStore

__all__ = ["MongoSignal", "MongoStore"]
