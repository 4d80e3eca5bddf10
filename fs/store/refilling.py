"""Giving an etcd that lost the namespace what its nameservers have of it in their mirrors.

    PREFIX/refill/MEMBER   namespace, etcd's cluster and revision of the mirror of one that would do it, on its lease
    PREFIX/refilling       the address of the one that does it, on its lease
    PREFIX/filled          a number that tells an etcd from the one whose place it took; none where nothing was lost

Of those that are started within some seconds the one whose mirror is furthest does it. The namespace's identity is
written last: before, nobody serves.
"""

import logging
import secrets
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from speedwell.fs.errors import StorageFailed
from speedwell.fs.etcd_client import EtcdClient
from speedwell.fs.nameserver.backup.provenance import SKIPPED_INODES
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.namespace_records import Superblock
from speedwell.fs.proto import etcd_pb2 as pb
from speedwell.fs.store.contract import IDENTITY_KEY, end_of_prefix
from speedwell.fs.store.transactions import absent, leased, operation, unchanged

log = logging.getLogger(__name__)

LEASE_SECONDS = 5
SETTLE_SECONDS = 5.0
"""So long after the last that would do it nobody else is waited for."""

POLL_SECONDS = 0.2
PIECE_KEYS, PIECE_BYTES = 1000, 512 << 10

_BOTH = b"refill"
_CANDIDATE, _WRITER = _BOTH + b"/", _BOTH + b"ing"
_FILLED = b"filled"


@dataclass(frozen=True, order=True)
class Mirror:
    """How far a mirror of etcd is."""

    revision: int
    cluster: int
    namespace: bytes

    @classmethod
    def decode(cls, value: bytes) -> "Mirror":
        namespace, cluster, revision = value.decode().split()
        return cls(int(revision), int(cluster), bytes.fromhex(namespace))

    def encode(self) -> bytes:
        return f"{self.namespace.hex()} {self.cluster} {self.revision}".encode()


class Refilling:
    """Of the namespace below `prefix`, whose records are below `data`. What asks etcd raises StorageFailed."""

    def __init__(self, etcd: EtcdClient, prefix: bytes, data: bytes, address: str,
                 stopped: threading.Event) -> None:
        self._etcd = etcd
        self._prefix = prefix
        self._data = data
        self._address = address
        self._stopped = stopped

    def cluster(self, header: pb.ResponseHeader) -> int:
        """The etcd that answers: a new one has the old one's id where its members have the same names."""
        found = self._etcd.range(self._prefix + _FILLED, b"").kvs
        return header.cluster_id ^ int(found[0].value) if found else int(header.cluster_id)

    def refuse_meanwhile(self) -> None:
        """Raises StorageFailed while another nameserver does it or is about to."""
        first = self._prefix + _BOTH
        if self._etcd.range(first, end_of_prefix(first) or b"").kvs:
            raise StorageFailed("other nameservers are giving etcd its namespace back")

    def refill(self, own: Mirror, pairs: Iterable[tuple[bytes, bytes]], blocks: int) -> None:
        """Returns once etcd has the namespace, from `pairs` or from another nameserver. So many blocks' counters get
        numbers of inodes that were not given out before."""
        lease, _ = self._etcd.grant_lease(LEASE_SECONDS)
        key = self._prefix + _CANDIDATE + uuid.uuid4().hex.encode()
        self._etcd.transaction(pb.TxnRequest(success=[leased(key, own.encode(), lease)]))
        try:
            writer = self._wait_for_turn(key, own, lease)
            if writer:
                log.warning("etcd has no namespace: it gets what this nameserver has of it, up to revision %d",
                            own.revision)
                self._write(own, _beyond(pairs, blocks), lease, writer)
        finally:
            self._etcd.revoke_lease(lease)

    def _wait_for_turn(self, key: bytes, own: Mirror, lease: int) -> int:
        """The revision of the writer's key, which is this nameserver's; 0 if etcd has a namespace by now."""
        known: set[bytes] = set()
        since = time.monotonic()
        while not self._stopped.wait(POLL_SECONDS):
            if not self._etcd.renew_lease(lease):
                raise StorageFailed("etcd did not answer in time to get its namespace back: it is tried again")
            if self._etcd.range(self._data + IDENTITY_KEY, b"").kvs:
                return 0
            first = self._prefix + _CANDIDATE
            candidates = {pair.key: Mirror.decode(pair.value)
                          for pair in self._etcd.range(first, end_of_prefix(first) or b"").kvs}
            _require_comparable(own, candidates.values())
            if candidates.keys() - known:
                known, since = set(candidates), time.monotonic()
            newest = max(candidates, key=lambda each: (candidates[each], each), default=b"")
            if newest == key and time.monotonic() - since > SETTLE_SECONDS:
                answer = self._etcd.transaction(pb.TxnRequest(
                    compare=[absent(self._prefix + _WRITER)],
                    success=[leased(self._prefix + _WRITER, self._address.encode(), lease)]))
                if answer.succeeded:
                    return int(answer.header.revision)
        raise StorageFailed("the store is closed")

    def _write(self, own: Mirror, pairs: Iterator[tuple[bytes, bytes]], lease: int, writer: int) -> None:
        began = renewed = time.monotonic()
        count = 0
        self._put([pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(
            key=self._data, range_end=end_of_prefix(self._data) or b""))], writer)
        for piece in _pieces((key, value) for key, value in pairs if key != IDENTITY_KEY):
            self._put([operation(self._data + key, value) for key, value in piece], writer)
            count += len(piece)
            if time.monotonic() - renewed > LEASE_SECONDS / 5:
                renewed = time.monotonic()
                self._etcd.renew_lease(lease)
        self._put([operation(self._data + IDENTITY_KEY, own.namespace),
                   operation(self._prefix + _FILLED, b"%d" % secrets.randbits(63))], writer)
        log.warning("etcd has the namespace again: %d records after %.1f s", count, time.monotonic() - began)

    def _put(self, changes: list[pb.RequestOp], writer: int) -> None:
        answer = self._etcd.transaction(pb.TxnRequest(
            compare=[unchanged(self._prefix + _WRITER, writer), absent(self._data + IDENTITY_KEY)], success=changes))
        if not answer.succeeded:
            raise StorageFailed("another nameserver gives etcd its namespace, or has begun a new one there")


def _require_comparable(own: Mirror, others: Iterable[Mirror]) -> None:
    for other in others:
        if other.namespace != own.namespace:
            raise StorageFailed(f"this nameserver has the namespace {own.namespace.hex()}, another that would fill "
                                f"etcd {other.namespace.hex()}: start those of one namespace only")
        if other.cluster != own.cluster:
            raise StorageFailed("this nameserver and another that would fill etcd followed different etcds: first "
                                "start the one that served last, alone")


def _pieces(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    piece: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in pairs:
        piece.append((key, value))
        size += len(key) + len(value)
        if len(piece) == PIECE_KEYS or size > PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _beyond(pairs: Iterable[tuple[bytes, bytes]], blocks: int) -> Iterator[tuple[bytes, bytes]]:
    """The same with counters that give out other numbers than those that changes had which are lost."""
    counters = {records.superblock_key(block): Superblock(1, 0, 0, block) for block in range(1, blocks)}
    for key, value in pairs:
        if key[:1] == records.SUPERBLOCK_KEY:
            counters[key] = Superblock.decode(value, records.block_of_key(key))
        else:
            yield key, value
    for key, superblock in counters.items():
        superblock.next_inode += SKIPPED_INODES
        yield key, superblock.encode()
