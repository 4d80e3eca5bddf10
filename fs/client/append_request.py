"""One append after the other to a file's primary, and the publication of the length they reach."""

import threading
import time
from collections.abc import Callable

from fs.channel import Channel, ConnectionLost, MalformedFrame
from fs.client.context import ClientContext
from fs.errors import AppendFailed, NoReplicaAvailable, NoSpace, SpeedwellError, StaleFile
from fs.proto.speedwell_pb2 import (
    NO_SPACE,
    NOT_FOUND,
    OK,
    STALE,
    AppendOperation,
    Attributes,
    DataReply,
    DataRequest,
    Replica,
)

PATIENCE_SECONDS = 30.0
"""Longer than a primary may wait for the appends of others and for a replica that does not answer."""

REFUSAL_SECONDS = 1.0
SUCCESSION_SECONDS = 6.0
"""How long to wait for the nameserver to notice that a primary is gone and to name another one."""

SUCCESSION_INTERVAL_SECONDS = 0.25
SEALED_INTERVAL_SECONDS = 0.02


class AppendRequests:
    """Appends to one file. `append` is called by one thread at a time."""

    def __init__(self, context: ClientContext, attributes: Attributes, path: bytes) -> None:
        self.attributes = attributes
        self.end = attributes.size      # where the last acknowledged append ended
        self._context = context
        self._path = path
        self._failed: dict[str, None] = {}
        self._unpublished = False
        self._lock = threading.Lock()

    def append(self, send: Callable[[Channel], None], length: int) -> int:
        """Have `length` bytes appended that `send` puts on the channel; returns their offset.

        As long as it is certain that nothing was done (the primary has not been given the last byte, or
        refused), the append is tried once more after a fresh look-up; where the primary is gone, the look-up
        is repeated until the nameserver names another one or this one is back.
        Raises AppendFailed, NoSpace, NoReplicaAvailable, StaleFile.
        """
        deadline = time.monotonic() + SUCCESSION_SECONDS
        while True:
            try:
                return self._append_once(send, length)
            except _NothingDone as failure:
                successor = self._look_up_again(follow=failure.sealed)
                if time.monotonic() > deadline or not (successor or failure.primary_gone or failure.sealed):
                    raise failure.error from None
                if not successor:
                    time.sleep(SEALED_INTERVAL_SECONDS if failure.sealed else SUCCESSION_INTERVAL_SECONDS)

    def publish(self) -> None:
        """Commit the length reached at the nameserver, if it is not there yet.

        Raises StaleFile, NameserverUnavailable.
        """
        with self._lock:
            if not self._unpublished:
                return
            self.attributes = self._context.metadata.commit(
                self.attributes.inode, self.attributes.file_id, self.end, failed_replicas=tuple(self._failed))
            self._unpublished = False

    # ------------------------------------------------------------------ private

    def _append_once(self, send: Callable[[Channel], None], length: int) -> int:
        primary, relay = self._targets()
        channel: Channel | None = None
        handed_over = False
        try:
            channel = self._context.connections.take(primary.host, primary.port)
            channel.set_timeout(PATIENCE_SECONDS)
            channel.send(DataRequest(append=AppendOperation(
                file_id=self.attributes.file_id, inode=self.attributes.inode, path=self._path,
                chunk_size=self.attributes.chunk_size, length=length, relay=relay,
                known_size=max(self.attributes.size, self.end))), more=True)
            send(channel)
            handed_over = True
            reply = channel.expect(DataReply)
        except (ConnectionLost, MalformedFrame) as error:
            reply = self._after_break(primary, channel, handed_over, error)
        except BaseException:
            if channel is not None:
                channel.close()  # in the middle of the bytes: the primary forgets them
            raise
        if reply.status != OK:
            raise _NothingDone(_refusal(primary, reply, self._path), sealed=reply.status == STALE)
        self._context.connections.give_back(primary.host, primary.port, channel)  # type: ignore[arg-type]
        self._note(reply, length)
        return reply.offset

    def _after_break(self, primary: Replica, channel: Channel | None, handed_over: bool,
                     error: SpeedwellError) -> DataReply:
        """The refusal that the primary sent before it closed. Raises if there is none."""
        self._context.note_failure(primary)
        self._context.metrics.add(replica_failures=1)
        where = f"dataserver {primary.dataserver_id} ({primary.host}:{primary.port})"
        if channel is None:
            gone = NoReplicaAvailable(f"the primary of {_shown(self._path)} takes no append: {where}: {error}")
            raise _NothingDone(gone, primary_gone=True) from None
        try:
            if not handed_over:
                channel.set_timeout(REFUSAL_SECONDS)
                reply = channel.receive(DataReply)
                if reply is not None and reply.status != OK:
                    return reply
        except (ConnectionLost, MalformedFrame):
            pass
        finally:
            channel.close()
        if handed_over:
            raise AppendFailed(f"{where} did not acknowledge an append to {_shown(self._path)}, which it may have "
                               f"carried out: {error}") from None
        raise _NothingDone(AppendFailed(f"{where} failed during an append to {_shown(self._path)}: {error}"),
                           primary_gone=True) from None

    def _targets(self) -> tuple[Replica, list[Replica]]:
        left = [replica for replica in self.attributes.replicas if replica.dataserver_id not in self._failed]
        if not left:
            raise NoReplicaAvailable(f"{_shown(self._path)} has no replica left to append to")
        return left[0], left[1:]

    def _note(self, reply: DataReply, length: int) -> None:
        with self._lock:
            self.end = max(self.end, reply.offset + length)
            self._unpublished = True
            new = [name for name in reply.failed_replicas if name not in self._failed]
            self._failed.update(dict.fromkeys(new))
        self._context.metrics.add(append_requests=1, bytes_appended=length, replicas_dropped=len(new))

    def _look_up_again(self, follow: bool) -> bool:
        """Whether the nameserver names another primary now; with `follow`, a new content is one too."""
        try:
            attributes = self._context.metadata.lookup_inode(self.attributes.inode)
        except SpeedwellError:
            return False
        if follow and attributes.file_id != self.attributes.file_id:
            # A version was made from ours, which has all that was appended before.
            with self._lock:
                self.attributes, self.end = attributes, attributes.size
                self._unpublished = False
            return True
        if attributes.file_id != self.attributes.file_id:
            raise StaleFile(f"{_shown(self._path)} has a new content: open it again")
        before, self.attributes = self.attributes, attributes
        return [r.dataserver_id for r in before.replicas][:1] != [r.dataserver_id for r in attributes.replicas][:1]


class _NothingDone(Exception):
    """The append failed and is certain to have no effect."""

    def __init__(self, error: SpeedwellError, primary_gone: bool = False, sealed: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.primary_gone = primary_gone
        self.sealed = sealed


def _refusal(primary: Replica, reply: DataReply, path: bytes) -> SpeedwellError:
    reason = f"{_shown(path)}: dataserver {primary.dataserver_id}: {reply.message}"
    if reply.status == NO_SPACE:
        return NoSpace(reason)
    if reply.status == NOT_FOUND:
        return StaleFile(reason)
    return AppendFailed(reason)


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
