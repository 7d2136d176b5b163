"""The store in memory: the reference that every other store is compared with, and what `memory://` means.

`MemoryStore` answers the port; `Space` holds the data of one namespace and its indexes; `Ordered` is the sorted
collection under all of them. Nothing is durable: the data lives as long as its `MemoryDatabase`.
"""

from horarium.stores.memory.store import MemoryDatabase, MemoryStore

__all__ = ["MemoryDatabase", "MemoryStore"]
