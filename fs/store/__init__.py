"""Ordered key-value stores that hold a namespace: LevelDB, and one in memory held to the same tests."""

from fs.store.interface import Batch, Store, end_of_prefix
from fs.store.leveldb import LevelDBStore
from fs.store.memory import MemoryStore

__all__ = ["Batch", "LevelDBStore", "MemoryStore", "Store", "end_of_prefix"]
