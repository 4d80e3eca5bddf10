"""Changing a file anywhere: a new version made from the newest one, and its publication.

Only what changes is sent. If another client publishes first, the same changes are made on its version: the last
writer wins where both wrote, and nothing else is lost.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from fs.channel import Channel, ConnectionLost, MalformedFrame
from fs.client.append_request import ANSWER_SECONDS, PATIENCE_SECONDS, PAUSE_SECONDS
from fs.client.context import ClientContext
from fs.errors import NoReplicaAvailable, NoSpace, SpeedwellError, StaleFile, Superseded, WriteFailed
from fs.limits import require_possible_length
from fs.proto.speedwell_pb2 import (
    BUSY,
    NO_SPACE,
    NOT_FOUND,
    OK,
    Attributes,
    DataReply,
    DataRequest,
    Range,
    Replica,
    WriteOperation,
)

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


def publish_changes(context: ClientContext, attributes: Attributes, path: bytes,
                    changes: Changes) -> tuple[Attributes, bool]:
    """Make the changes on the newest version of the file and publish it.

    Returns the file's attributes then, and whether `attributes` were of that newest version: if not, the content
    has changes of others too.

    Raises FileTooLarge, WriteFailed, NoSpace, NoReplicaAvailable, NoSuchFile (removed): nothing of it is visible
    then.
    """
    require_possible_length(max(changes.size or 0, changes.reach, *(end for _, end in changes.ranges)))
    deadline = time.monotonic() + PATIENCE_SECONDS
    excluded: dict[str, None] = {}
    known = attributes.file_id, attributes.size
    while True:
        try:
            published, base_size = _Attempt(context, attributes, path, changes, list(excluded)).run()
            return published, (attributes.file_id, base_size) == known
        except (Superseded, StaleFile) as error:
            newest = context.metadata.lookup_inode(attributes.inode)
            if newest.file_id == attributes.file_id and newest.size <= attributes.size:
                if time.monotonic() > deadline:
                    raise WriteFailed(f"{_shown(path)}: {error}") from None
                time.sleep(PAUSE_SECONDS)
            elif newest.file_id != attributes.file_id:
                excluded.clear()
            attributes = newest
        except _PrimaryFailed as failure:
            if time.monotonic() > deadline:
                raise failure.error from None
            excluded[failure.replica.dataserver_id] = None
            newest = context.metadata.lookup_inode(attributes.inode)
            if newest.file_id != attributes.file_id or not any(
                    replica.dataserver_id not in excluded for replica in newest.replicas):
                excluded.clear()
                time.sleep(PAUSE_SECONDS)
            attributes = newest


class _PrimaryFailed(Exception):
    """The replica that was asked did not make the version."""

    def __init__(self, replica: Replica, error: SpeedwellError) -> None:
        super().__init__(str(error))
        self.replica = replica
        self.error = error


class _Attempt:
    """One version, made and published; an attempt that fails is not seen by anybody."""

    def __init__(self, context: ClientContext, attributes: Attributes, path: bytes, changes: Changes,
                 excluded: list[str]) -> None:
        self._context = context
        self._attributes = attributes
        self._path = path
        self._changes = changes
        self._excluded = excluded
        self._file_id = str(uuid.uuid4())

    def run(self) -> tuple[Attributes, int]:
        """The file's attributes with the new version, and how long the old one was."""
        replicas = [replica for replica in self._attributes.replicas
                    if replica.dataserver_id not in self._excluded]
        if not replicas:
            raise NoReplicaAvailable(f"{_shown(self._path)} has no replica left to write to")
        reply = self._make(replicas[0], replicas[1:])
        failed = [*self._excluded, *reply.failed_replicas]
        attributes = self._context.metadata.publish(
            self._attributes.inode, self._attributes.file_id, reply.offset, self._file_id, reply.file_size,
            epoch=self._attributes.epoch, failed_replicas=failed)
        self._context.metrics.add(versions_written=1, replicas_dropped=len(failed),
                                  bytes_written=sum(end - begin for begin, end in self._changes.ranges))
        return attributes, reply.offset

    def _make(self, primary: Replica, relay: list[Replica]) -> DataReply:
        where = f"dataserver {primary.dataserver_id} ({primary.host}:{primary.port})"
        channel: Channel | None = None
        try:
            channel = self._context.connection_to(
                primary, sum(end - begin for begin, end in self._changes.ranges))
            channel.set_timeout(ANSWER_SECONDS)
            channel.send(DataRequest(write=self._operation(relay)), more=bool(self._changes.ranges))
            self._changes.send(channel)
            reply = channel.expect(DataReply)
        except (ConnectionLost, MalformedFrame) as error:
            if channel is not None:
                channel.close()
            self._context.note_failure(primary)
            self._context.metrics.add(replica_failures=1)
            failed = WriteFailed(f"{where} did not write {_shown(self._path)}: {error}")
            raise _PrimaryFailed(primary, failed) from None
        except BaseException:
            if channel is not None:
                channel.close()  # in the middle of the bytes: the dataserver forgets them
            raise
        self._context.connections.give_back(primary.host, primary.port, channel)
        if reply.status == OK:
            return reply
        reason = f"{_shown(self._path)}: dataserver {primary.dataserver_id}: {reply.message}"
        if reply.status == NO_SPACE:
            raise NoSpace(reason)
        if reply.status == BUSY:
            raise Superseded(reason)
        if reply.status == NOT_FOUND:
            raise _PrimaryFailed(primary, StaleFile(reason))
        raise _PrimaryFailed(primary, WriteFailed(reason))

    def _operation(self, relay: list[Replica]) -> WriteOperation:
        changes, attributes = self._changes, self._attributes
        return WriteOperation(
            file_id=self._file_id, base=attributes.file_id, inode=attributes.inode, path=self._path,
            chunk_size=attributes.chunk_size, base_size=attributes.size, size=changes.size, keep=changes.keep,
            reach=changes.reach,
            ranges=[Range(offset=begin, length=end - begin) for begin, end in changes.ranges],
            zeros=[Range(offset=begin, length=end - begin) for begin, end in changes.zeros], relay=relay)


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
