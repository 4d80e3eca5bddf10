"""The data channel's listening end."""

import logging
import os
import secrets
import socket
import time
from itertools import islice

from google.protobuf.message import Message

from speedwell.fs.checksums import BLOCK_BYTES, MAX_SUMS, blocks_of
from speedwell.fs.dataserver.admission import Door
from speedwell.fs.dataserver.disk.contents import MAX_INVENTORY, inventory, verify
from speedwell.fs.dataserver.disk.holes import holes
from speedwell.fs.dataserver.disk.quarantine import Quarantine
from speedwell.fs.dataserver.disk.store import MAX_OFFSET, FileStore
from speedwell.fs.dataserver.disk.stored_file import StoredFile
from speedwell.fs.dataserver.namespace_identity import Identity
from speedwell.fs.dataserver.replication.append import Appends
from speedwell.fs.dataserver.replication.primary import Primary
from speedwell.fs.dataserver.replication.primary_office import Authority
from speedwell.fs.dataserver.replication.versions import Versions
from speedwell.fs.dataserver.upkeep.pace import SLICE_BYTES, Pace
from speedwell.fs.dataserver.upkeep.scrub import Scrubber
from speedwell.fs.errors import InvalidArgument, NoSuchFile, NotReady, SpeedwellError, StorageFailed, TokenRefused
from speedwell.fs.identity.bundle import Identity as Certificate
from speedwell.fs.limits import MAX_HOLES
from speedwell.fs.proto.speedwell_pb2 import (
    INVALID,
    IO_ERROR,
    NOT_FOUND,
    NOT_READY,
    OK,
    TOKEN_REFUSED,
    CheckOperation,
    DataReply,
    DataRequest,
    HistoryOperation,
    HolesOperation,
    InventoryOperation,
    LengthOperation,
    QuarantineOperation,
    Range,
    ReadOperation,
    VerifyOperation,
)
from speedwell.fs.rates import REQUESTS_PER_SECOND, Rates, of_refused
from speedwell.fs.tokens import NONCE_BYTES
from speedwell.fs.wire.channel import Channel, ConnectionLost
from speedwell.fs.wire.connections import ConnectionPool
from speedwell.fs.wire.frame_server import IDLE_SECONDS, LINGER_BYTES, SEND_STALL_SECONDS, FrameServer
from speedwell.fs.wire.local_sockets import MAX_DESCRIPTORS, send_descriptors
from speedwell.fs.wire.secure_channel import SecureChannel, data_connector

log = logging.getLogger(__name__)

PAYLOAD_STALL_SECONDS = 10.0


class DataServer(FrameServer):
    """Serves a `FileStore` on a listening socket until `stop`."""

    admits_local_users = True   # by their tokens

    def __init__(self, store: FileStore, listener: socket.socket, authority: Authority, *,
                 local_listener: socket.socket | None = None, idle_seconds: float = IDLE_SECONDS,
                 max_connections: int = 0, scrubber: Scrubber | None = None,
                 quarantine: Quarantine | None = None, identity: Identity | None = None,
                 pace: Pace | None = None, certificate: Certificate | None = None, door: Door,
                 requests_per_second: float = REQUESTS_PER_SECOND) -> None:
        """`door` says who is served; so many requests each client may make, more wait. `pace` is that of what is sent
        for replicas that others make. With a `certificate` all but local connections are TLS, to others too."""
        super().__init__(listener, local_listener=local_listener, idle_seconds=idle_seconds,
                         max_connections=max_connections, identity=certificate)
        self._store = store
        self._relays = ConnectionPool(connector=None if certificate is None else data_connector(certificate))
        self._door = door
        primary = Primary(store, self._relays, authority, door)
        self._appends = Appends(store, self._relays, primary, door)
        self._scrubber = scrubber
        self._quarantine = quarantine
        self._dataserver_id = authority.dataserver_id
        self._identity = identity
        self._pace = pace
        self._versions = Versions(store, self._relays, primary, door)
        self._rates = Rates(requests_per_second, requests_per_second)
        self._refused = of_refused()

    def stop(self, grace_seconds: float = 1.0) -> None:
        """As FrameServer.stop; connections to other dataservers are closed too."""
        super().stop(grace_seconds)
        self._relays.close()

    def receive_request(self, channel: Channel) -> DataRequest | None:
        return channel.receive(DataRequest, (PAYLOAD_STALL_SECONDS, SEND_STALL_SECONDS))

    def serve_request(self, channel: Channel, request: Message) -> None:
        assert isinstance(request, DataRequest)
        if isinstance(channel, SecureChannel) and channel.refusal:
            raise InvalidArgument(channel.refusal)
        channel.set_timeout(PAYLOAD_STALL_SECONDS, SEND_STALL_SECONDS)
        operation = request.WhichOneof("operation")
        try:
            if operation == "proof":
                nonce, channel.nonce = channel.nonce, b""
                channel.client = self._door.proven(request.proof, nonce, self._dataserver_id)
                return
            self._door.check(request, channel.client)
        except (TokenRefused, NotReady) as error:
            if isinstance(error, TokenRefused):
                time.sleep(self._refused.take(channel.client or channel.source, time.monotonic()))
            self._turn_away(channel, request, error)
            return
        if channel.client and (wait_seconds := self._rates.take(channel.client, time.monotonic())):
            time.sleep(wait_seconds)
        if operation == "read":
            self._read(channel, request.read)
        elif operation == "append":
            channel.send(self._appends.serve(channel, request.append))
        elif operation == "write":
            channel.send(self._versions.serve(channel, request.write))
        elif operation == "length":
            channel.send(self._appends.current_length(channel, request.length) if request.length.strong
                         else self._length(request.length))
        elif operation == "check":
            channel.send(self._check(request.check))
        elif operation == "holes":
            channel.send(self._holes(request.holes))
        elif operation == "history":
            channel.send(self._history(request.history))
        elif operation == "join":
            channel.send(self._appends.join(channel, request.join))
        elif operation == "sync":
            channel.send(self._appends.sync(channel, request.sync))
        elif operation == "inventory":
            channel.send(self._inventory(request.inventory))
        elif operation == "verify":
            channel.send(self._verify(request.verify))
        elif operation == "quarantine":
            channel.send(self._from_quarantine(request.quarantine))
        elif operation == "identity":
            namespace = self._identity.namespace if self._identity is not None else b""
            channel.nonce = secrets.token_bytes(NONCE_BYTES)
            channel.send(DataReply(status=OK, dataserver_id=self._dataserver_id, namespace=namespace,
                                   nonce=channel.nonce))
        else:
            raise InvalidArgument("operation: the request has none that this dataserver knows: if a later release "
                                  "has it, upgrade the dataserver (docs/upgrades.md)")

    def name_of(self, request: Message) -> str:
        assert isinstance(request, DataRequest)
        return request.WhichOneof("operation") or "no operation"

    def refusal(self, error: SpeedwellError) -> DataReply:
        return DataReply(status=INVALID, message=error.message)

    def _turn_away(self, channel: Channel, request: DataRequest, error: TokenRefused | NotReady) -> None:
        """Answer, and keep the connection unless too many bytes follow that nobody wants."""
        self.note_refusal("%s: %s refused: %s", channel.peer, request.WhichOneof("operation"), error)
        reply = DataReply(status=TOKEN_REFUSED if isinstance(error, TokenRefused) else NOT_READY, message=str(error))
        following = request.append.length + sum(each.length for each in request.write.ranges)
        if following > LINGER_BYTES or request.HasField("proof"):   # after that a request waits for this answer
            self.refuse(channel, reply)
            raise ConnectionLost(f"{channel.peer} was refused")
        channel.discard(following)
        channel.send(reply)

    def note_sent(self, count_bytes: int) -> None:
        """Before a read is answered with so many bytes. Nothing to do but for a server that counts."""

    # ------------------------------------------------------------------ operations

    def _read(self, channel: Channel, operation: ReadOperation) -> None:
        for name, value in (("offset", operation.offset), ("length", operation.length)):
            if value > MAX_OFFSET:
                raise InvalidArgument(f"{name}: {value} is more than {MAX_OFFSET}")
        promised = False
        try:
            with self._store.opened(operation.file_id) as file:
                reply = _read_reply(file, operation)
                self.note_sent(reply.length)
                if operation.descriptors and channel.is_local and _hand_over(channel, file, reply):
                    return
                for descriptor, start, count in file.segments(reply.offset, reply.length):
                    if not promised:
                        channel.send(reply, more=True)
                        promised = True
                    if operation.paced and self._pace is not None:
                        self._send_paced(channel, descriptor, start, count, self._pace)
                    else:
                        channel.send_file(descriptor, start, count)
                if not promised:
                    channel.send(reply)
        except NoSuchFile as error:
            self._fail_read(channel, promised, DataReply(status=NOT_FOUND, message=str(error)))
        except (StorageFailed, EOFError) as error:
            log.error("read of %s failed: %s", operation.file_id, error)
            if self._scrubber is not None:
                self._scrubber.report(operation.file_id)
            self._fail_read(channel, promised, DataReply(status=IO_ERROR, message=str(error)))

    def _send_paced(self, channel: Channel, descriptor: int, start: int, count: int, pace: Pace) -> None:
        for position in range(start, start + count, SLICE_BYTES):
            length = min(SLICE_BYTES, start + count - position)
            pace.wait(length)
            channel.send_file(descriptor, position, length)

    def _fail_read(self, channel: Channel, promised: bool, reply: DataReply) -> None:
        if promised:  # in the middle of raw bytes only a closed connection can be told from data
            raise ConnectionLost(reply.message)
        channel.send(reply)

    def _check(self, operation: CheckOperation) -> DataReply:
        if self._scrubber is not None:
            self._scrubber.report(operation.file_id)
        return DataReply(status=OK)

    def _length(self, operation: LengthOperation) -> DataReply:
        try:
            with self._store.opened(operation.file_id) as file:
                return DataReply(status=OK, file_size=file.length)
        except NoSuchFile as error:
            return DataReply(status=NOT_FOUND, message=str(error))
        except StorageFailed as error:
            return DataReply(status=IO_ERROR, message=str(error))

    def _holes(self, operation: HolesOperation) -> DataReply:
        try:
            with self._store.opened(operation.file_id) as file:
                return DataReply(status=OK, file_size=file.length, holes=[
                    Range(offset=begin, length=end - begin)
                    for begin, end in islice(holes(file, min(operation.offset, MAX_OFFSET)), MAX_HOLES)])
        except NoSuchFile as error:
            return DataReply(status=NOT_FOUND, message=str(error))
        except StorageFailed as error:
            return DataReply(status=IO_ERROR, message=str(error))

    def _history(self, operation: HistoryOperation) -> DataReply:
        try:
            with self._store.opened(operation.file_id) as file:
                appends = file.ordering.log(file.length)
                records = [record.message() for record in appends.beyond(operation.offset)]
                return DataReply(status=OK, file_size=file.length, epoch=appends.epoch, records=records,
                                 path=file.path)
        except NoSuchFile as error:
            return DataReply(status=NOT_FOUND, message=str(error))
        except StorageFailed as error:
            return DataReply(status=IO_ERROR, message=str(error))

    def _inventory(self, operation: InventoryOperation) -> DataReply:
        limit = min(operation.limit or MAX_INVENTORY, MAX_INVENTORY)
        try:
            if operation.quarantined:
                aside = self._quarantine.reports(operation.after, limit) if self._quarantine is not None else ()
                return DataReply(status=OK, contents=aside)
            damaged = self._scrubber.damaged if self._scrubber is not None else None
            return DataReply(status=OK, contents=inventory(self._store, operation.after, limit, damaged,
                                                           digests=operation.digests))
        except OSError as error:
            return DataReply(status=IO_ERROR, message=str(error))

    def _from_quarantine(self, operation: QuarantineOperation) -> DataReply:
        if self._quarantine is None:
            return DataReply(status=IO_ERROR, message="this dataserver has no quarantine")
        try:
            if operation.empty:
                self._quarantine.empty()
            elif not self._quarantine.restore(operation.restore):
                return DataReply(status=NOT_FOUND, message=f"{operation.restore[:60]!r} is not in quarantine here")
            return DataReply(status=OK)
        except StorageFailed as error:
            return DataReply(status=IO_ERROR, message=str(error))

    def _verify(self, operation: VerifyOperation) -> DataReply:
        if self._scrubber is None:
            return DataReply(status=IO_ERROR, message="this dataserver does not check its blocks")
        try:
            damaged, after = verify(self._store, self._scrubber, operation)
            return DataReply(status=OK, contents=damaged, after=after)
        except OSError as error:
            return DataReply(status=IO_ERROR, message=str(error))


def _hand_over(channel: Channel, file: StoredFile, reply: DataReply) -> bool:
    """Answer with the descriptors of the files that hold the bytes; False, and nothing is sent, if they are many.
    Raises StorageFailed."""
    descriptors: list[int] = []
    try:
        for descriptor, start, count in file.segments(reply.offset, reply.length):
            if len(descriptors) == MAX_DESCRIPTORS:
                del reply.pieces[:]
                return False
            descriptors.append(os.dup(descriptor))
            reply.pieces.add(offset=start, length=count)
        if not descriptors:
            return False
        channel.send(reply, more=True)
        send_descriptors(channel, descriptors)
        return True
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _read_reply(file: StoredFile, operation: ReadOperation) -> DataReply:
    """What is sent for a read. Raises StorageFailed."""
    committed = file.committed
    begin, file_size = operation.offset, committed[0]
    stop = min(begin + operation.length, file_size)
    if not operation.sums or stop <= begin:
        return DataReply(status=OK, file_size=file_size, length=max(0, stop - begin), offset=begin)
    first, end = begin // BLOCK_BYTES, min(blocks_of(stop), begin // BLOCK_BYTES + MAX_SUMS)
    begin, stop = first * BLOCK_BYTES, min(end * BLOCK_BYTES, file_size)
    return DataReply(status=OK, file_size=file_size, length=stop - begin, offset=begin,
                     sums=file.sums(first, end, committed))
