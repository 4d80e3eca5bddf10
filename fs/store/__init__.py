"""Ordered key-value stores that hold a namespace, all held to the same tests: LevelDB, one in memory, and one that
etcd keeps for several nameservers."""

from fs.store.etcd_client import EtcdClient
from fs.store.interface import IDENTITY_KEY, Batch, Store, end_of_prefix
from fs.store.journaled import JournaledStore, Position
from fs.store.leveldb import LevelDBStore
from fs.store.memory import MemoryStore
from fs.store.replicated import ReplicatedStore

__all__ = ["IDENTITY_KEY", "Batch", "EtcdClient", "JournaledStore", "LevelDBStore", "MemoryStore", "Position",
           "ReplicatedStore", "Store", "end_of_prefix"]
