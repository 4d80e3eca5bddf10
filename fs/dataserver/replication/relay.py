"""Passing an append or a new version on to the other replicas, piece by piece while it arrives.

The replicas form a chain: each sends to the next. When the next one fails, the data that this server has
on disk by then goes to the one after it, so one dead replica costs the set no other. The commit takes effect at
the end of the chain first and at the primary last: what the primary shows, all others have.
"""

import logging
from collections.abc import Callable, Iterator, Sequence

from speedwell.fs.coflows import Account, configured
from speedwell.fs.dataserver.admission import Door
from speedwell.fs.errors import StaleEpoch
from speedwell.fs.proto.speedwell_pb2 import (
    NO_SPACE,
    OK,
    OUT_OF_DATE,
    STALE_EPOCH,
    AppendOperation,
    CommitAppend,
    DataReply,
    DataRequest,
    Replica,
    WriteOperation,
)
from speedwell.fs.wire.channel import Channel, ConnectionLost, MalformedFrame
from speedwell.fs.wire.connections import ConnectionPool

log = logging.getLogger(__name__)

Segments = Callable[[], Iterator[tuple[int, int, int]]]
"""Gives (descriptor, offset, bytes) of the data on this server's disk."""

ANSWER_SECONDS = 10.0
"""How long the last replica of a chain may be silent; each one before it waits longer for its answer."""

VERSION_SECONDS = 15.0
"""The same for a new version, for which blocks may have to be copied."""

MORE_SECONDS_PER_REPLICA = 5.0


class Relay:
    """One change on its way to `targets`, as the primary has ordered it. Afterwards `failed` has the dataserver ids
    that do not hold it; of them `behind` those whose file has another length than it is made for, and `full` those
    whose disk has no room."""

    def __init__(self, operation: AppendOperation | WriteOperation, targets: Sequence[Replica],
                 connections: ConnectionPool, door: Door, segments: Segments) -> None:
        self.failed: list[str] = []
        self.behind: list[str] = []
        self.full: list[str] = []
        self._operation = operation
        self._connections = connections
        self._door = door
        self._segments = segments
        self._chain: list[Replica] = []       # the replica we send to, then those it sends to
        self._waiting: list[Replica] = list(targets)
        self._channel: Channel | None = None
        self._account: Account | None = None
        self._coflows = configured()
        self._channel = self._open()

    def send(self, piece: memoryview) -> None:
        """Pass `piece` on. A replica that does not take it is replaced later, in `prepare`."""
        if self._channel is None:
            return
        try:
            self._channel.send_bytes([piece])
        except ConnectionLost as error:
            self._lose_head(str(error))

    def send_segments(self) -> None:
        """Pass on everything that is on this server's disk, in place of `send`."""
        if self._channel is None:
            return
        try:
            for descriptor, start, count in self._segments():
                self._channel.send_file(descriptor, start, count)
        except ConnectionLost as error:
            self._lose_head(str(error))

    def prepare(self) -> None:
        """Wait until every live target holds all the bytes. Raises StaleEpoch if one knows a newer epoch."""
        while self._channel is not None or self._waiting:
            if self._channel is None and not self._send_again():
                continue
            reply = self._answer()
            if reply is None:
                continue
            if reply.status == OK:
                self._end_account()
                self._note(reply)
                return
            self._refused(reply)

    def commit(self, digest: int) -> None:
        """Make the bytes visible on every target that holds them with sums of that digest, and wait for it. Raises
        StaleEpoch."""
        while self._channel is not None:
            try:
                self._channel.send(CommitAppend(commit=True, digest=digest))
            except ConnectionLost as error:
                self._lose_head(str(error))
            else:
                reply = self._answer()
                if reply is not None and reply.status == OK:
                    self._note(reply)
                    self._finish()
                    return
                if reply is not None and reply.status == STALE_EPOCH:
                    self._refused(reply)
                if reply is not None:
                    self._drop(reply.message)
            self.prepare()

    def abort(self) -> None:
        """Tell the targets to forget the bytes: a closed connection says so at any point."""
        self._end_account()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._waiting.clear()

    # ------------------------------------------------------------------ private

    def _open(self) -> Channel | None:
        while self._waiting:
            self._chain, self._waiting = self._waiting, []
            head = self._chain[0]
            request = _request(self._operation, self._chain[1:], self._door)
            channel = None
            try:
                channel = self._door.connection(self._connections, head)
                first = ANSWER_SECONDS if isinstance(self._operation, AppendOperation) else VERSION_SECONDS
                wait_seconds = first + MORE_SECONDS_PER_REPLICA * (len(self._chain) - 1)
                channel.set_timeout(wait_seconds, ANSWER_SECONDS)
                channel.send(request, more=request.HasField("append") or bool(request.write.ranges))
                self._tell(channel)
                return channel
            except ConnectionLost as error:
                if channel is not None:
                    channel.close()
                self._drop(str(error))
        return None

    def _tell(self, channel: Channel) -> None:
        """Report the flow to the head of the chain as part of the append's coflow."""
        self._end_account()
        append = self._operation
        if self._coflows is not None and isinstance(append, AppendOperation) and append.records:
            record = append.records[0]
            self._account = self._coflows.append(append.file_id, record.writer, record.sequence, channel.socket,
                                                 append.length)

    def _end_account(self) -> None:
        account, self._account = self._account, None
        if account is not None:
            account.ended()

    def _send_again(self) -> bool:
        self._channel = self._open()
        self.send_segments()
        return self._channel is not None

    def _answer(self) -> DataReply | None:
        if self._channel is None:
            return None
        try:
            return self._channel.expect(DataReply)
        except (ConnectionLost, MalformedFrame) as error:
            self._lose_head(str(error))
            return None

    def _refused(self, reply: DataReply) -> None:
        head = self._chain[0]
        if reply.status == STALE_EPOCH:
            self.abort()
            raise StaleEpoch(reply.message)
        if reply.status == OUT_OF_DATE:
            self.behind.append(head.dataserver_id)
        if reply.status == NO_SPACE:
            self.full.append(head.dataserver_id)
        self._drop(reply.message)

    def _note(self, reply: DataReply) -> None:
        self.failed.extend(reply.failed_replicas)
        self.behind.extend(reply.behind_replicas)
        self.full.extend(reply.full_replicas)

    def _lose_head(self, reason: str) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._drop(reason)

    def _drop(self, reason: str) -> None:
        """The head of the chain is out; those behind it are still to be served."""
        self._end_account()
        self._finish()
        head = self._chain[0]
        log.warning("%s: dataserver %s does not take the change: %s", self._operation.file_id,
                    head.dataserver_id, reason)
        self.failed.append(head.dataserver_id)
        self._waiting = self._chain[1:]

    def _finish(self) -> None:
        if self._channel is not None:
            head = self._chain[0]
            self._connections.give_back(head.host, head.port, self._channel)
            self._channel = None


def _request(change: AppendOperation | WriteOperation, relay: Sequence[Replica], door: Door) -> DataRequest:
    request = DataRequest(token=door.sign(change.file_id if isinstance(change, AppendOperation) else change.base))
    operation = request.append if isinstance(change, AppendOperation) else request.write
    operation.MergeFrom(change)  # type: ignore[arg-type]
    del operation.relay[:]
    operation.relay.extend(relay)
    return request
