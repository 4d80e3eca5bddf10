"""One append after the other to a file's primary, and the publication of the length they reach."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from speedwell.fs import paths, units
from speedwell.fs.client.context import ClientContext, Writer
from speedwell.fs.client.patience import PAUSE_SECONDS, Patience
from speedwell.fs.coflows import Account
from speedwell.fs.errors import (
    AppendFailed,
    NoReplicaAvailable,
    NoSpace,
    NoSuchFile,
    QuotaExceeded,
    SpeedwellError,
    StaleFile,
    TooFewReplicas,
)
from speedwell.fs.proto.speedwell_pb2 import (
    BUSY,
    FENCED,
    IO_ERROR,
    NO_SPACE,
    NOT_FOUND,
    NOT_READY,
    OK,
    OUT_OF_DATE,
    STALE,
    STALE_EPOCH,
    TOKEN_REFUSED,
    TOO_FEW_REPLICAS,
    AppendOperation,
    AppendRecord,
    Attributes,
    DataReply,
    DataRequest,
    Replica,
)
from speedwell.fs.tokens import WRITE, gives_no
from speedwell.fs.wire.channel import Channel, ConnectionLost, MalformedFrame

ANSWER_SECONDS = 30.0
"""Longer than a primary may wait for the appends of others and for a replica that does not answer."""

LOOK_SECONDS = 2.0
"""After so long without an answer the nameserver is asked whether the primary is still the primary."""

REFUSAL_SECONDS = 1.0
SEALED_PAUSE_SECONDS = 0.02
ROOM_BYTES = 64 << 20
"""After so much, or when the room below a quota is used up, the length is published to learn what room there is."""

CONFIRM_SECONDS = 2.0
"""After so long the nameserver is asked whether the file has a new content: one that was truncated has."""


@dataclass(frozen=True)
class Begun:
    """An append whose bytes have been sent to the primary."""

    primary: Replica
    channel: Channel
    writer: Writer
    account: Account | None


class AppendRequests:
    """Appends to one file. `append` is called by one thread at a time."""

    def __init__(self, context: ClientContext, attributes: Attributes, path: bytes) -> None:
        self.attributes = attributes
        self.end = attributes.size      # where the last acknowledged append ended
        self._context = context
        self._path = path
        self._writer: Writer | None = None
        self._confirmed_at = time.monotonic()
        self._unpublished = False
        self._room = _room(attributes)
        self._lock = threading.Lock()

    def begin(self, send: Callable[[Channel], None], length: int) -> Begun | None:
        """Send an append without waiting for its answer; `append` then has to be called with what this returns.

        None if nothing could be sent, which `append` will find out about. Raises QuotaExceeded.
        """
        writer = self._next(length)
        try:
            return self._send(send, length, writer, False)
        except (_Again, SpeedwellError):
            return None

    def append(self, send: Callable[[Channel], None], length: int, begun: Begun | None = None) -> int:
        """Have `length` bytes appended that `send` puts on the channel; returns their offset. `begun`: they have been
        sent.

        What fails for a while (a dead primary, replicas that change, a lost answer) is tried again with the same
        writer and sequence number, so that the bytes are appended once however often they are sent.
        Raises AppendFailed, NoSpace, NoReplicaAvailable, StaleFile, QuotaExceeded.
        """
        writer = self._next(length) if begun is None else begun.writer
        patience = Patience()
        retry = False
        while True:
            try:
                sent, begun = begun or self._send(send, length, writer, retry), None
                return self._finish(sent, length)
            except _Again as failure:
                retry = retry or failure.may_be_done
                changed = self._look_up_again(failure)
                if patience.is_over(changed) or (failure.final and not changed):
                    raise failure.error from None
                if not changed:
                    time.sleep(SEALED_PAUSE_SECONDS if failure.sealed else PAUSE_SECONDS)

    def close(self) -> None:
        """No append follows."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._context.give_back_writer(writer)

    def publish(self) -> None:
        """Commit the length reached at the nameserver, if it is not there yet.

        Raises StaleFile, NameserverUnavailable.
        """
        with self._lock:
            if not self._unpublished:
                return
            before = self.attributes
            self.attributes = self._context.metadata.commit(before.inode, before.file_id, self.end,
                                                            origin=before.origin)
            if self.attributes.file_id != before.file_id:
                self.end = self.attributes.size
            self._unpublished = False

    # ------------------------------------------------------------------ private

    def _fullest_quota(self) -> str:
        """The quota with the least room for this file, by its directory if the nameserver still knows."""
        with suppress(SpeedwellError):
            limited = [quota for quota in self._context.metadata.quotas(self._path) if quota.HasField("max_bytes")]
            if limited:
                fullest = min(limited, key=lambda quota: quota.max_bytes - quota.used_bytes)
                return f"the quota on {paths.display(fullest.path)}"
        return "a quota"

    def _take_room(self, length: int) -> None:
        """Raises QuotaExceeded if the nameserver says that there is less room below a quota."""
        if length > self._room:
            self._confirm()
            with suppress(NoSuchFile):     # it was removed: nothing counts any more
                self.publish()
            attributes = self.attributes
            if attributes.HasField("room") and attributes.room < length:
                raise QuotaExceeded(f"{paths.display(self._path)}: {units.size(length)} more are too many for "
                                    f"{self._fullest_quota()}, which has room for {units.size(attributes.room)}")
            self._room = max(_room(attributes), length)
        self._room -= length

    def _next(self, length: int) -> Writer:
        """The writer, about to append so many bytes. Raises QuotaExceeded."""
        self._take_room(length)
        if time.monotonic() - self._confirmed_at > CONFIRM_SECONDS:
            self._confirm()
        if self._writer is None:
            self._writer = self._context.take_writer()
        self._writer.sequence += 1
        return self._writer

    def _send(self, send: Callable[[Channel], None], length: int, writer: Writer, retry: bool) -> Begun:
        primary, relay = self._targets()
        self._context.metadata.fence(self.attributes.inode)
        token = self._context.tokens.of(self.attributes, WRITE)
        channel: Channel | None = None
        account: Account | None = None
        try:
            channel = self._context.connection_to(primary, length)
            channel.set_timeout(ANSWER_SECONDS)
            channel.send(DataRequest(append=AppendOperation(
                file_id=self.attributes.file_id, inode=self.attributes.inode, path=self._path,
                chunk_size=self.attributes.chunk_size, length=length, relay=relay, epoch=self.attributes.epoch,
                records=[AppendRecord(writer=writer.id, sequence=writer.sequence)], retry=retry,
                known_size=max(self.attributes.size, self.end),
                min_replicas=self.attributes.min_replicas), token=token), more=True)
            if self._context.coflows is not None and not channel.is_local:
                account = self._context.coflows.append(self.attributes.file_id, writer.id, writer.sequence,
                                                       channel.socket, length)
            send(channel)
            return Begun(primary, channel, writer, account)
        except BaseException as error:
            if account is not None:
                account.ended()
            if isinstance(error, ConnectionLost | MalformedFrame):
                reply = self._after_break(primary, channel, False, error)
                raise self._refused(primary, reply) from None
            if channel is not None:
                channel.close()  # in the middle of the bytes: the primary forgets them
            raise

    def _finish(self, begun: Begun, length: int) -> int:
        primary, channel = begun.primary, begun.channel
        try:
            self._await_answer(channel, primary)
            reply = channel.expect_alone(DataReply)
        except (ConnectionLost, MalformedFrame) as error:
            reply = self._after_break(primary, channel, True, error)
        except BaseException:
            channel.close()
            raise
        finally:
            if begun.account is not None:
                begun.account.ended()
        if reply.status != OK:
            raise self._refused(primary, reply)
        self._context.connections.give_back(primary.host, primary.port, channel)
        self._note(primary, reply, length)
        return reply.offset

    def _refused(self, primary: Replica, reply: DataReply) -> "SpeedwellError | _Again":
        if reply.status == TOKEN_REFUSED:
            self._context.tokens.refused(self.attributes)
        return _refusal(primary, reply, self._path)

    def _await_answer(self, channel: Channel, primary: Replica) -> None:
        """Raises ConnectionLost when there is none for too long, or another primary has been named."""
        for _ in range(int(ANSWER_SECONDS / LOOK_SECONDS)):
            if channel.is_readable(LOOK_SECONDS):
                return
            try:
                attributes = self._context.metadata.lookup_inode(self.attributes.inode, to_append=True)
            except SpeedwellError:
                continue
            if [replica.dataserver_id for replica in attributes.replicas[:1]] != [primary.dataserver_id]:
                raise ConnectionLost("it does not answer, and another primary has been named")

    def _after_break(self, primary: Replica, channel: Channel | None, handed_over: bool,
                     error: SpeedwellError) -> DataReply:
        """The refusal that the primary sent before it closed. Raises _Again if there is none."""
        self._context.note_failure(primary)
        self._context.metrics.add(replica_failures=1)
        where = f"dataserver {primary.dataserver_id} ({primary.host}:{primary.port})"
        if channel is None:
            raise _Again(NoReplicaAvailable(
                f"the primary of {paths.display(self._path)} takes no append: {where}: {error}")) from None
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
            raise _Again(AppendFailed(f"{where} did not acknowledge an append to {paths.display(self._path)}, "
                                      f"which it may have carried out: {error}"), may_be_done=True) from None
        raise _Again(AppendFailed(f"{where} failed during an append to {paths.display(self._path)}: "
                                  f"{error}")) from None

    def _targets(self) -> tuple[Replica, list[Replica]]:
        replicas = self.attributes.replicas
        if not replicas:
            raise NoReplicaAvailable(f"{paths.display(self._path)} has no replica to append to")
        return replicas[0], list(replicas[1:])

    def _note(self, primary: Replica, reply: DataReply, length: int) -> None:
        with self._lock:
            self.end = max(self.end, reply.offset + length)
            self._unpublished = True
            if reply.epoch > self.attributes.epoch:
                self.attributes = _with_replicas(self.attributes, reply.epoch, [primary, *reply.replicas])
        self._context.metrics.add(append_requests=1, bytes_appended=length,
                                  replicas_dropped=len(reply.failed_replicas))

    def _confirm(self) -> None:
        """Go on with the newest version. A removed file is reported by the commit."""
        try:
            self._look_up_again(_Again(NoSuchFile("removed"), sealed=True))
        except NoSuchFile:
            return
        self._confirmed_at = time.monotonic()

    def _look_up_again(self, failure: "_Again") -> bool:
        """Whether the nameserver names another primary or another set now. Raises StaleFile, and the failure's own
        error if that was for want of a right which the nameserver does not give."""
        try:
            attributes = self._context.tokens.look_up_to_write(self.attributes)
        except NoSuchFile:
            raise failure.error from None
        except SpeedwellError:
            return False
        if failure.refused and gives_no(WRITE, attributes.token):
            raise failure.error from None
        if failure.sealed and attributes.file_id != self.attributes.file_id:
            # A version was made from ours, which has all that was appended before.
            with self._lock:
                self.attributes, self.end = attributes, attributes.size
                self._unpublished = False
            return True
        if attributes.file_id != self.attributes.file_id and failure.fenced:
            # Only the primary knows whether the new content was made from ours. It will say so when it may.
            return False
        if attributes.file_id != self.attributes.file_id:
            raise StaleFile(f"{paths.display(self._path)} has a new content: open it again")
        with self._lock:
            before = self.attributes
            if attributes.epoch < before.epoch:
                return False
            self.attributes = attributes
        return attributes.epoch > before.epoch or list(attributes.replicas) != list(before.replicas)


def _room(attributes: Attributes) -> int:
    """Bytes that may be appended before the nameserver is asked again."""
    return min(attributes.room, ROOM_BYTES) if attributes.HasField("room") else ROOM_BYTES


class _Again(Exception):
    """The append failed for now. `may_be_done`: it may have been carried out. `final`: unless the replicas
    have changed, trying again is of no use. `sealed`: the file has a new version. `fenced`: the primary has not
    heard of the nameserver, and says nothing of the file until then. `refused`: for its token."""

    def __init__(self, error: SpeedwellError, *, may_be_done: bool = False, final: bool = False,
                 sealed: bool = False, fenced: bool = False, refused: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.may_be_done = may_be_done
        self.final = final
        self.sealed = sealed
        self.fenced = fenced
        self.refused = refused


def _with_replicas(attributes: Attributes, epoch: int, replicas: list[Replica]) -> Attributes:
    changed = Attributes()
    changed.CopyFrom(attributes)  # the original may be in the cache
    changed.epoch = epoch
    del changed.replicas[:]
    changed.replicas.extend(replicas)
    return changed


def _refusal(primary: Replica, reply: DataReply, path: bytes) -> "SpeedwellError | _Again":
    reason = f"{paths.display(path)}: dataserver {primary.dataserver_id}: {reply.message}"
    if reply.status == NO_SPACE:
        return NoSpace(reason)
    if reply.status == NOT_FOUND:
        return _Again(StaleFile(reason), final=True)
    error = AppendFailed(reason)
    if reply.status == FENCED:  # what others hold of it by now is not taken back
        return _Again(error, may_be_done=True, fenced=True)
    if reply.status == TOO_FEW_REPLICAS:
        return _Again(TooFewReplicas(reason), may_be_done=True)
    if reply.status in (BUSY, STALE_EPOCH, TOKEN_REFUSED, NOT_READY):
        return _Again(error, may_be_done=reply.status == STALE_EPOCH, refused=reply.status == TOKEN_REFUSED)
    if reply.status == STALE:
        return _Again(error, sealed=True)
    if reply.status in (IO_ERROR, OUT_OF_DATE):
        return _Again(error, may_be_done=reply.status == IO_ERROR, final=True)
    return error
