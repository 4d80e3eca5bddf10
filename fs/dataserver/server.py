"""The data channel's listening end: a thread per connection, one request after the other on each."""

import contextlib
import logging
import socket
import threading
import time

from fs.channel import Channel, ConnectionLost, MalformedFrame
from fs.connections import ConnectionPool
from fs.dataserver.append import Appends
from fs.dataserver.store import MAX_OFFSET, FileStore
from fs.errors import InvalidArgument, NoSuchFile, StorageFailed
from fs.proto.speedwell_pb2 import (
    BUSY,
    INVALID,
    IO_ERROR,
    NOT_FOUND,
    OK,
    DataReply,
    DataRequest,
    LengthOperation,
    ReadOperation,
)

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 512
IDLE_SECONDS = 60.0
"""A connection without a request for this long is closed."""

PAYLOAD_STALL_SECONDS = 10.0
SEND_STALL_SECONDS = 60.0
"""A reader may pause: its socket's buffer is full then, and nothing moves."""

LINGER_SECONDS = 1.0
_LINGER_BYTES = 4 << 20


class DataServer:
    """Serves a `FileStore` on a listening socket until `stop`."""

    def __init__(self, store: FileStore, listener: socket.socket, *, sync: bool = False,
                 idle_seconds: float = IDLE_SECONDS, max_connections: int = MAX_CONNECTIONS) -> None:
        self._store = store
        self._listener = listener
        self._relays = ConnectionPool()
        self._appends = Appends(store, self._relays, sync)
        self._idle_seconds = idle_seconds
        self._max_connections = max_connections
        self._open: dict[Channel, bool] = {}  # whether a request is being served
        self._changed = threading.Condition()
        self._stopping = False

    def serve(self) -> None:
        """Accept connections until `stop`."""
        while not self._stopping:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._stopping:
                    return
                log.error("cannot accept a connection: %s", error)
                time.sleep(0.1)  # out of descriptors or memory: give those in use time to end
                continue
            self._accept(connection)

    def stop(self, grace_seconds: float = 1.0) -> None:
        """Take no more requests, give those under way `grace_seconds` to end, close everything."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._changed:
            for channel, busy in self._open.items():
                if not busy:
                    with contextlib.suppress(OSError):
                        channel.socket.shutdown(socket.SHUT_RDWR)
            self._changed.wait_for(lambda: not any(self._open.values()), grace_seconds)
            for channel in self._open:
                with contextlib.suppress(OSError):
                    channel.socket.shutdown(socket.SHUT_RDWR)
        self._relays.close()

    # ------------------------------------------------------------------ connections

    def _accept(self, connection: socket.socket) -> None:
        try:
            channel = Channel(connection)
        except OSError:
            connection.close()
            return
        with self._changed:
            full = len(self._open) >= self._max_connections
            if not full:
                self._open[channel] = False
        if full:
            log.warning("%s turned away: %d connections are open", channel.peer, self._max_connections)
            channel.set_timeout(LINGER_SECONDS)
            with contextlib.suppress(ConnectionLost):
                channel.send(DataReply(status=BUSY, message="too many connections"))
            channel.close()
            return
        threading.Thread(target=self._converse, args=(channel,), daemon=True).start()

    def _converse(self, channel: Channel) -> None:
        try:
            while not self._stopping and self._serve_one(channel):
                pass
        except ConnectionLost as error:
            log.debug("%s", error)
        except (InvalidArgument, MalformedFrame) as error:
            log.warning("%s sent a malformed request: %s", channel.peer, error)
            _refuse(channel, str(error))
        except Exception:
            log.exception("a request of %s failed", channel.peer)
        finally:
            with self._changed:
                del self._open[channel]
                self._changed.notify_all()
            channel.close()

    def _serve_one(self, channel: Channel) -> bool:
        channel.set_timeout(self._idle_seconds, SEND_STALL_SECONDS)
        request = channel.receive(DataRequest)
        if request is None:
            return False
        self._set_busy(channel, True)
        channel.set_timeout(PAYLOAD_STALL_SECONDS, SEND_STALL_SECONDS)
        operation = request.WhichOneof("operation")
        if operation == "read":
            self._read(channel, request.read)
        elif operation == "append":
            channel.send(self._appends.serve(channel, request.append))
        elif operation == "length":
            channel.send(self._length(request.length))
        else:
            raise InvalidArgument("operation: the request has none")
        self._set_busy(channel, False)
        return True

    def _set_busy(self, channel: Channel, busy: bool) -> None:
        self._open[channel] = busy
        if self._stopping:
            with self._changed:
                self._changed.notify_all()

    # ------------------------------------------------------------------ operations

    def _read(self, channel: Channel, operation: ReadOperation) -> None:
        for name, value in (("offset", operation.offset), ("length", operation.length)):
            if value > MAX_OFFSET:
                raise InvalidArgument(f"{name}: {value} is more than {MAX_OFFSET}")
        promised = False
        try:
            with self._store.opened(operation.file_id) as file:
                file_size = file.length
                length = max(0, min(operation.length, file_size - operation.offset))
                reply = DataReply(status=OK, file_size=file_size, length=length, offset=operation.offset)
                for descriptor, start, count in file.segments(operation.offset, length):
                    if not promised:
                        channel.send(reply, more=True)
                        promised = True
                    channel.send_file(descriptor, start, count)
                if not promised:
                    channel.send(reply)
        except NoSuchFile as error:
            self._fail_read(channel, promised, DataReply(status=NOT_FOUND, message=str(error)))
        except (StorageFailed, EOFError) as error:
            log.error("read of %s failed: %s", operation.file_id, error)
            self._fail_read(channel, promised, DataReply(status=IO_ERROR, message=str(error)))

    def _fail_read(self, channel: Channel, promised: bool, reply: DataReply) -> None:
        if promised:  # in the middle of raw bytes only a closed connection can be told from data
            raise ConnectionLost(reply.message)
        channel.send(reply)

    def _length(self, operation: LengthOperation) -> DataReply:
        try:
            with self._store.opened(operation.file_id) as file:
                return DataReply(status=OK, file_size=file.length)
        except NoSuchFile as error:
            return DataReply(status=NOT_FOUND, message=str(error))
        except StorageFailed as error:
            return DataReply(status=IO_ERROR, message=str(error))


def _refuse(channel: Channel, message: str) -> None:
    """Answer INVALID and close so that the answer arrives: unread bytes would turn the close into a reset."""
    deadline = time.monotonic() + LINGER_SECONDS
    with contextlib.suppress(ConnectionLost, OSError):
        channel.set_timeout(LINGER_SECONDS)
        channel.send(DataReply(status=INVALID, message=message))
        channel.socket.shutdown(socket.SHUT_WR)
        scratch = memoryview(bytearray(65536))
        dropped = 0
        while dropped < _LINGER_BYTES and time.monotonic() < deadline:
            dropped += channel.receive_some(scratch)
