"""Attributes of inodes as the wire has them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from speedwell.fs import file_status
from speedwell.fs.nameserver.namespace.namespace_records import REGULAR, Inode, parse_inode
from speedwell.fs.nameserver.replicas.registry import Dataserver, Registry
from speedwell.fs.nameserver.service import request_fields as requests
from speedwell.fs.nameserver.service.asking import asking
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.tokens import READ, WRITE

MAX_KNOWN = 32768
TOKEN_KEPT = 0.25
"""Such a part of its time a token for a listing is given out again."""

_ENTRY = pb.ListReply.DESCRIPTOR.fields_by_name["entries"].number
_NAME, _ATTRIBUTES = (pb.DirectoryEntry.DESCRIPTOR.fields_by_name[name].number for name in ("name", "attributes"))
_LENGTH_DELIMITED = 2   # protobuf.dev, Encoding: the wire type of strings and messages


Sign = Callable[[str, int, int], bytes]
"""The token for a content, the inode of its file, and rights."""


@dataclass(slots=True)
class _Known:
    record: bytes
    own: bytes
    replicas: tuple[int, ...]
    quota: int
    file_id: str
    token: bytes = b""
    token_client: str = ""
    token_until: float = float("-inf")


class WireAttributes:
    """The caller holds the nameserver's guard in all methods. `room` gives the bytes left in a quota, `least` the
    fewest replicas that may take a change."""

    def __init__(self, registry: Registry, room: Callable[[int], int | None], least: Callable[[int], int],
                 clock_seconds: Callable[[], float], sign: Sign, token_seconds: float) -> None:
        self._registry = registry
        self._room = room
        self._least = least
        self._clock_seconds = clock_seconds
        self._replica_messages: dict[tuple[Dataserver, bool], pb.Replica] = {}
        self._known: dict[int, _Known] = {}
        self._statuses: dict[int, tuple[bytes, bytes]] = {}     # with the record that each is made of
        self._sign = sign
        self._token_kept_seconds = TOKEN_KEPT * token_seconds

    def of(self, inode: Inode) -> pb.Attributes:
        attributes = self._of_record(inode)
        if inode.content is not None:
            self._add_servers(attributes, inode.content.replicas, inode.quota)
            attributes.token = self._sign(attributes.file_id, inode.number, READ | WRITE)
        return attributes

    def entries(self, entries: Iterable[tuple[bytes, int, bytes]]) -> Iterator[bytes]:
        """Entries of a ListReply, serialised, from names, numbers of inodes and their records. What was made of a
        record before is not made again. Their tokens are for reading."""
        now = self._clock_seconds()
        servers: dict[tuple[tuple[int, ...], int], bytes] = {}
        for name, number, record in entries:
            known = self._known_of(number, record)
            rest = servers.get((known.replicas, known.quota))
            if rest is None:
                added = self._add_servers(pb.Attributes(), known.replicas, known.quota)
                rest = servers[known.replicas, known.quota] = added.SerializeToString()
            if known.file_id and asking.authorization is not None:
                token = pb.Attributes(token=self._sign(known.file_id, number, READ)).SerializeToString()
                yield _entry(name, known.own + rest + token)
                continue
            if known.file_id and (now >= known.token_until or known.token_client != asking.client):
                token = self._sign(known.file_id, number, READ)
                known.token = pb.Attributes(token=token).SerializeToString()
                known.token_client = asking.client
                known.token_until = now + (self._token_kept_seconds if token else 0)
            yield _entry(name, known.own + rest + known.token)

    def statuses(self, inodes: Sequence[int], records: Sequence[bytes]) -> bytes:
        """The `file_status.STATUS` of each, from their numbers and records."""
        known, none = self._statuses.get, (b"", b"")
        return b"".join([status if record == made_of else self._status(number, record)
                         for number, record in zip(inodes, records, strict=True)
                         for made_of, status in (known(number, none),)])

    def replicas(self, numbers: Sequence[int]) -> Sequence[pb.Replica]:
        return [self.replica(server, alive)
                for server, alive in self._registry.with_state(numbers, self._clock_seconds())]

    def replica(self, server: Dataserver, alive: bool) -> pb.Replica:
        message = self._replica_messages.get((server, alive))
        if message is None:
            message = pb.Replica(dataserver_id=server.dataserver_id, host=server.host, port=server.port,
                                 rack=server.rack, pod=server.pod, alive=alive)
            self._replica_messages[server, alive] = message
        return message

    # -------------------------------------------------------------- private

    def _of_record(self, inode: Inode) -> pb.Attributes:
        """What the inode's record alone decides."""
        content = inode.content
        if content is None:
            return pb.Attributes(
                inode=inode.number, type=inode.kind,  # type: ignore[arg-type]
                mode=inode.mode, uid=inode.uid, gid=inode.gid,
                atime_ns=inode.atime_ns, mtime_ns=inode.mtime_ns, ctime_ns=inode.ctime_ns,
                link_count=inode.link_count, target=inode.target, device=inode.device, size=len(inode.target),
                has_extended_attributes=bool(inode.extended_attributes))
        return pb.Attributes(
            inode=inode.number, type=pb.REGULAR, mode=inode.mode, uid=inode.uid, gid=inode.gid,
            atime_ns=inode.atime_ns, mtime_ns=inode.mtime_ns, ctime_ns=inode.ctime_ns,
            link_count=inode.link_count, size=content.size_bytes, hole_bytes=content.hole_bytes,
            has_extended_attributes=bool(inode.extended_attributes),
            file_id=requests.file_id_text(content.file_id), chunk_size=content.chunk_size_bytes,
            origin=requests.file_id_text(content.origin) if content.origin else "",
            epoch=content.epoch, min_replicas=self._least(content.replication))

    def _add_servers(self, attributes: pb.Attributes, replicas: Sequence[int], quota: int) -> pb.Attributes:
        """What else there is to a file."""
        attributes.replicas.extend(self.replicas(replicas))
        room = self._room(quota) if quota else None
        if room is not None:
            attributes.room = room
        return attributes

    def _status(self, number: int, record: bytes) -> bytes:
        inode = parse_inode(number, record)     # nothing more is made of it: most directories are listed once
        content = inode.content
        size_bytes = content.size if inode.type == REGULAR else len(inode.target)
        status = file_status.pack(number, inode, size_bytes, content.hole_bytes, inode.mtime_ns, inode.ctime_ns)
        if len(self._statuses) >= MAX_KNOWN:
            self._statuses.clear()
        self._statuses[number] = record, status
        return status

    def _known_of(self, number: int, record: bytes) -> _Known:
        known = self._known.get(number)
        return self._learn(number, record) if known is None or known.record != record else known

    def _learn(self, number: int, record: bytes) -> _Known:
        inode = Inode.decode(number, record)
        replicas, quota = ((), 0) if inode.content is None else (inode.content.replicas, inode.quota)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        attributes = self._of_record(inode)
        known = self._known[number] = _Known(record, attributes.SerializeToString(), replicas, quota,
                                             attributes.file_id)
        return known


def _entry(name: bytes, attributes: bytes) -> bytes:
    return _field(_ENTRY, _field(_NAME, name) + _field(_ATTRIBUTES, attributes))


def _field(number: int, data: bytes) -> bytes:
    """A string or message of protobuf's wire format."""
    head, size = bytearray([number << 3 | _LENGTH_DELIMITED]), len(data)
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head) + data
