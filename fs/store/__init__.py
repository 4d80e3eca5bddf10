"""Ordered key-value stores that hold a namespace, all held to the same tests: LevelDB, one in memory, and those that
etcd keeps for several nameservers, of which one leads (`replicated`) or each owns a part (`shared`)."""

from speedwell.fs.store.contract import IDENTITY_KEY, Batch, Store, end_of_prefix
from speedwell.fs.store.journaled import JournaledStore, Position
from speedwell.fs.store.leveldb import LevelDBStore
from speedwell.fs.store.memory import MemoryStore

__all__ = ["IDENTITY_KEY", "Batch", "JournaledStore", "LevelDBStore", "MemoryStore", "Position",
           "Store", "end_of_prefix"]
