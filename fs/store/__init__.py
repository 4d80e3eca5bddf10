"""Ordered key-value stores that hold a namespace, all held to the same tests: LevelDB, one in memory, and one that
etcd keeps for several nameservers, of which one leads or each owns a part."""

from speedwell.fs.store.contract import IDENTITY_KEY, Batch, Store, end_of_prefix
from speedwell.fs.store.journaled import JournaledStore, Position
from speedwell.fs.store.leveldb import LevelDBStore
from speedwell.fs.store.memory import MemoryStore
from speedwell.fs.store.replicated import ReplicatedStore
from speedwell.fs.store.shared import SharedStore

__all__ = ["IDENTITY_KEY", "Batch", "JournaledStore", "LevelDBStore", "MemoryStore", "Position",
           "ReplicatedStore", "SharedStore", "Store", "end_of_prefix"]
