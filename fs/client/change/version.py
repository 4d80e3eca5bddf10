"""Changing a file anywhere: a new version, which the primary makes from the newest one and has published.

Only what changes is sent. The primary orders the versions of all clients: the last writer wins where two wrote, and
nothing else is lost.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from speedwell.fs import paths
from speedwell.fs.client.append.append_request import ANSWER_SECONDS
from speedwell.fs.client.context import ClientContext
from speedwell.fs.client.patience import PAUSE_SECONDS, Patience
from speedwell.fs.errors import (
    InvalidArgument,
    LocksLost,
    NoReplicaAvailable,
    NoSpace,
    QuotaExceeded,
    SpeedwellError,
    TooFewReplicas,
    WriteFailed,
)
from speedwell.fs.limits import require_possible_length
from speedwell.fs.proto.speedwell_pb2 import (
    LOCKS_LOST,
    NO_SPACE,
    OK,
    QUOTA_EXCEEDED,
    TOKEN_REFUSED,
    TOO_FEW_REPLICAS,
    Attributes,
    DataReply,
    DataRequest,
    Range,
    Replica,
    WriteOperation,
)
from speedwell.fs.tokens import WRITE
from speedwell.fs.wire.channel import Channel, ConnectionLost, MalformedFrame

Interval = tuple[int, int]
"""(offset of the first byte, offset after the last)"""


@dataclass(frozen=True)
class Changes:
    """What is to be different. `ranges` get new bytes, which `send` puts on a channel one range after the other;
    `zeros` become zeros. Both are sorted, and no byte is in two of them.

    `size` is the new length, None: the longest of the old content, `reach`, and where the ranges end. Bytes of
    the old content from `keep` on are zeros (None: all are kept).
    """

    ranges: list[Interval] = field(default_factory=list)
    send: Callable[[Channel], None] = lambda channel: None
    zeros: list[Interval] = field(default_factory=list)
    size: int | None = None
    keep: int | None = None
    reach: int = 0

    @classmethod
    def of(cls, pieces: Mapping[int, bytes], size: int | None = None) -> "Changes":
        """New bytes by the offset where they begin. Raises InvalidArgument for a negative offset or an overlap."""
        filled = sorted((offset, data) for offset, data in pieces.items() if data)
        ranges = [(offset, offset + len(data)) for offset, data in filled]
        if ranges and ranges[0][0] < 0:
            raise InvalidArgument(f"pieces: the offset {ranges[0][0]} is negative")
        for (_, end), (begin, _) in pairwise(ranges):
            if begin < end:
                raise InvalidArgument(f"pieces: the one at {begin} begins before the one in front of it ends ({end})")
        return cls(ranges, lambda channel: channel.send_bytes([data for _, data in filled]), size=size)


def publish_changes(context: ClientContext, attributes: Attributes, path: bytes,
                    changes: Changes) -> tuple[Attributes, bool]:
    """Have the primary make the changes on the newest version of the file and publish it.

    Returns the file's attributes then, and whether `attributes` were of that newest version: if not, the content
    has changes of others too.

    Raises InvalidArgument, FileTooLarge, WriteFailed, NoSpace, QuotaExceeded, NoReplicaAvailable, NoSuchFile
    (removed): nothing of it is visible then, unless WriteFailed says that it may be.
    """
    if changes.size is not None and changes.size < 0:
        raise InvalidArgument(f"size: {changes.size} is negative")
    require_possible_length(max(changes.size or 0, changes.reach, *(end for _, end in changes.ranges)))
    patience = Patience()
    known = attributes.file_id, attributes.size
    base_size_of: dict[str, tuple[str, int]] = {}   # by file id of the versions that may be published
    while True:
        attempt = _Attempt(context, attributes, path, changes)
        try:
            published, base_size = attempt.run()
            _take_own_token(context, published)
            return published, (attributes.file_id, base_size) == known
        except _Again as failure:
            base_size_of[attempt.file_id] = attributes.file_id, attributes.size
            newest = context.metadata.lookup_inode(attributes.inode, to_append=True)
            if newest.file_id in base_size_of:
                return newest, base_size_of[newest.file_id] == known
            unchanged = newest.file_id == attributes.file_id and newest.epoch == attributes.epoch
            if patience.is_over(not unchanged):
                raise failure.error from None
            if unchanged:
                time.sleep(PAUSE_SECONDS)
            attributes = newest


def _take_own_token(context: ClientContext, published: Attributes) -> None:
    """In place of that of the dataserver that has published the version, where tokens are for one client each."""
    with suppress(SpeedwellError):
        if context.tokens.proof_key() is not None:
            newest = context.metadata.lookup_inode(published.inode)
            if newest.file_id == published.file_id:
                published.token = newest.token


class _Again(Exception):
    """The primary did not make the version, or the file changed meanwhile, or there was no answer."""

    def __init__(self, error: SpeedwellError) -> None:
        super().__init__(str(error))
        self.error = error


class _Attempt:
    """One version, made and published by the primary."""

    def __init__(self, context: ClientContext, attributes: Attributes, path: bytes, changes: Changes) -> None:
        self.file_id = str(uuid.uuid4())
        self._context = context
        self._attributes = attributes
        self._path = path
        self._changes = changes

    def run(self) -> tuple[Attributes, int]:
        """The file's attributes with the new version, and how long the old one was. Raises _Again."""
        replicas = list(self._attributes.replicas)
        if not replicas:
            raise NoReplicaAvailable(f"{paths.display(self._path)} has no replica to write to")
        reply = self._make(replicas[0], replicas[1:])
        self._context.metadata.cache.changed_inode(reply.attributes)
        self._context.metrics.add(versions_written=1, replicas_dropped=len(reply.failed_replicas),
                                  bytes_written=sum(end - begin for begin, end in self._changes.ranges))
        return reply.attributes, reply.offset

    def _make(self, primary: Replica, relay: list[Replica]) -> DataReply:
        where = f"dataserver {primary.dataserver_id} ({primary.host}:{primary.port})"
        channel: Channel | None = None
        token = self._context.tokens.of(self._attributes, WRITE)
        try:
            channel = self._context.connection_to(
                primary, sum(end - begin for begin, end in self._changes.ranges))
            channel.set_timeout(ANSWER_SECONDS)
            channel.send(DataRequest(write=self._operation(relay), token=token), more=bool(self._changes.ranges))
            self._changes.send(channel)
            reply = channel.expect(DataReply)
        except (ConnectionLost, MalformedFrame) as error:
            if channel is not None:
                channel.close()
            self._context.note_failure(primary)
            self._context.metrics.add(replica_failures=1)
            raise _Again(WriteFailed(f"{where} did not acknowledge a change of {paths.display(self._path)}, "
                                     f"which it may have carried out: {error}")) from None
        except BaseException:
            if channel is not None:
                channel.close()  # in the middle of the bytes: the dataserver forgets them
            raise
        self._context.connections.give_back(primary.host, primary.port, channel)
        if reply.status == OK:
            return reply
        if reply.status == TOKEN_REFUSED:
            self._context.tokens.refused(self._attributes)
        reason = f"{paths.display(self._path)}: dataserver {primary.dataserver_id}: {reply.message}"
        if reply.status == NO_SPACE:
            raise NoSpace(reason)
        if reply.status == LOCKS_LOST:
            raise LocksLost(reason)
        if reply.status == QUOTA_EXCEEDED:
            raise QuotaExceeded(reason)
        raise _Again(TooFewReplicas(reason) if reply.status == TOO_FEW_REPLICAS else WriteFailed(reason))

    def _operation(self, relay: list[Replica]) -> WriteOperation:
        changes, attributes = self._changes, self._attributes
        session, generation = self._context.metadata.fence(attributes.inode)
        return WriteOperation(
            file_id=self.file_id, base=attributes.file_id, inode=attributes.inode, path=self._path,
            chunk_size=attributes.chunk_size, base_size=attributes.size, size=changes.size, keep=changes.keep,
            reach=changes.reach, epoch=attributes.epoch, min_replicas=attributes.min_replicas,
            session=session, generation=generation,
            ranges=[Range(offset=begin, length=end - begin) for begin, end in changes.ranges],
            zeros=[Range(offset=begin, length=end - begin) for begin, end in changes.zeros], relay=relay)
