"""Where a metadata server keeps its records: LevelDB in the process, or a Redis beside it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Protocol

from speedwell.fs.errors import InvalidArgument, ProtocolError, StorageFailed, reason
from speedwell.fs.metadata_store.addresses import address_of
from speedwell.fs.metadata_store.wire import Connection, Refused, Reply
from speedwell.fs.store.contract import Batch
from speedwell.fs.store.leveldb import LevelDBStore

REDIS_TIMEOUT_SECONDS = 10.0
STATE_KEY = b"\0speedwell"
"""Of what a server has to remember for itself: no client's key."""
SCAN_COUNT = b"1000"


class Engine(Protocol):
    """Records by key, usable by several threads. Every method raises StorageFailed."""

    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, value: bytes) -> None:
        """Returns when the record is as safe as the engine promises."""

    def keys_in(self, block: IPv4Network) -> Iterator[bytes]:
        """The keys whose addresses are in a block; those that are put meanwhile may be missing."""

    def delete(self, key: bytes) -> None: ...

    def sync(self) -> None:
        """Have all records on the disk, if that is the engine's to decide."""

    def close(self) -> None: ...


class LevelDBEngine:
    """Records in LevelDB, by address: those of a block are one range. `put` has them on the disk unless `sync` is
    False: then a crash of the process loses none, one of the machine the last seconds'."""

    def __init__(self, directory: Path, sync: bool = True) -> None:
        self._store = LevelDBStore(directory)
        self._sync = sync

    def get(self, key: bytes) -> bytes | None:
        return self._store.get(_addressed(key))

    def put(self, key: bytes, value: bytes) -> None:
        batch = Batch()
        batch.put(_addressed(key), value)
        self._store.write(batch)
        if self._sync:
            self._store.sync()

    def keys_in(self, block: IPv4Network) -> Iterator[bytes]:
        end = int(block.broadcast_address) + 1
        for key in self._store.keys(block.network_address.packed, end.to_bytes(4)):
            yield key[4:]

    def delete(self, key: bytes) -> None:
        batch = Batch()
        batch.delete(_addressed(key))
        self._store.write(batch)

    def sync(self) -> None:
        self._store.sync()

    def close(self) -> None:
        self._store.close()


def _addressed(key: bytes) -> bytes:
    return address_of(key).packed + key


class RedisEngine:
    """Records in the Redis that listens at a Unix socket, under their own keys. `put` promises what that Redis is
    configured for: `appendfsync always` has them on the disk, `everysec` loses the last second's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._call(b"PING")

    def get(self, key: bytes) -> bytes | None:
        value = self._call(b"GET", key)
        assert value is None or isinstance(value, bytes)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        self._call(b"SET", key, value)

    def keys_in(self, block: IPv4Network) -> Iterator[bytes]:
        cursor = b"0"
        while True:
            reply = self._call(b"SCAN", cursor, b"COUNT", SCAN_COUNT)
            assert isinstance(reply, list) and isinstance(reply[0], bytes) and isinstance(reply[1], list)
            cursor = reply[0]
            yield from (key for key in reply[1] if isinstance(key, bytes) and address_of(key) in block)
            if cursor == b"0":
                return

    def delete(self, key: bytes) -> None:
        self._call(b"DEL", key)

    def sync(self) -> None:
        pass    # as its configuration says

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _call(self, *parts: bytes) -> Reply:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        try:
            connection = connection or self._connect()
            reply = connection.call(*parts)
        except Refused as error:
            assert connection is not None
            connection.close()
            raise StorageFailed(f"the Redis at {self._path} refuses {parts[0].decode()}: {error}") from None
        except (OSError, EOFError, ProtocolError) as error:
            if connection is not None:
                connection.close()
            raise StorageFailed(f"the Redis at {self._path} does not answer: {reason(error)}") from None
        with self._lock:
            self._idle.append(connection)
        return reply

    def _connect(self) -> Connection:
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(REDIS_TIMEOUT_SECONDS)
        try:
            connected.connect(str(self._path))
        except OSError:
            connected.close()
            raise
        return Connection(connected)


def open_engine(text: str, sync: bool) -> Engine:
    """`leveldb:DIR` or `redis:SOCKET`. Raises InvalidArgument, StorageFailed."""
    kind, separator, path = text.partition(":")
    if not separator or not path or kind not in ("leveldb", "redis"):
        raise InvalidArgument(f"--store: {text!r} is neither leveldb:DIR nor redis:SOCKET")
    return LevelDBEngine(Path(path), sync) if kind == "leveldb" else RedisEngine(Path(path))
