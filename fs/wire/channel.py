"""The data channel: frames on a TCP connection, raw bytes between them (docs/reference/data-channel.md).

A frame is `SPW`, the version of the protocol as a digit, the message's length as four big-endian bytes, and the
serialised protobuf message.
Timeouts are the kernel's (SO_RCVTIMEO, SO_SNDTIMEO) so that a blocking call costs one system call.
"""

import contextlib
import select
import socket
import struct
from collections.abc import Callable, Iterable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from speedwell.fs import tracing, units
from speedwell.fs.errors import ProtocolError, SpeedwellError, reason
from speedwell.fs.proto.speedwell_pb2 import Call, DataRequest
from speedwell.fs.wire import sending_files
from speedwell.fs.wire.network_interface import checksums_in_hardware
from speedwell.fs.wire.turns import in_turns

VERSION = 1
"""Of the protocol: another one where who ignores what is new would do something wrong (docs/upgrades.md)."""

MAGIC = b"SPW%d" % VERSION
MAX_FRAME_BYTES = 1 << 20
MAX_APPEND_BYTES = 1 << 30
HEADER = struct.Struct(">4sI")

CONNECT_TIMEOUT_SECONDS = 3.5
"""TCP repeats a lost first packet after 1 and 3 s: on a full link that happens, and the dataserver is well."""

STALL_TIMEOUT_SECONDS = 10.0

_TIMEVAL = struct.Struct("ll")
MAX_PARTS = 2
"""Of a frame: the kernel hands out a part, and not the whole, when the time is over."""

_DISCARD_BYTES = 256 * 1024
_IOV_LIMIT = 512
_ALONE_BYTES = 4096
# A plain number: to use an enum's flag takes longer than the system call.
_WAITALL = int(socket.MSG_WAITALL)
_DONTWAIT = int(socket.MSG_DONTWAIT)
_PEEK = int(socket.MSG_PEEK)
_REQUESTS = (Call, DataRequest)

M = TypeVar("M", bound=Message)


class MalformedFrame(ProtocolError):
    """What arrived is not a frame of this protocol, or its message does not parse."""


class OtherVersion(MalformedFrame):
    """What arrived is a frame of another version of this protocol; the message says which side to upgrade."""


class NotYet(Exception):
    """A frame has not come as a whole."""


class ConnectionLost(SpeedwellError):
    """The other side closed, reset or stalled the connection, or could not be reached."""


def encode(message: Message) -> bytes:
    """The frame of `message`. Raises MalformedFrame if it is larger than `MAX_FRAME_BYTES`."""
    body = message.SerializeToString()
    if len(body) > MAX_FRAME_BYTES:
        raise MalformedFrame(f"a frame has at most {MAX_FRAME_BYTES} bytes, this message {len(body)}")
    return HEADER.pack(MAGIC, len(body)) + body


def body_length(header: bytes, peer: str = "the other end") -> int:
    """The length in bytes that an 8-byte frame header from `peer` announces. Raises MalformedFrame, OtherVersion."""
    magic, length = HEADER.unpack(header)
    if magic != MAGIC:
        if magic[:3] == MAGIC[:3] and magic[3:].isdigit():
            theirs = int(magic[3:])
            raise OtherVersion(f"{peer} speaks version {theirs} of the protocol, this process version {VERSION}: "
                               f"upgrade {'this process' if theirs > VERSION else peer} (docs/upgrades.md)")
        raise MalformedFrame(f"a frame begins with {MAGIC!r}, not {magic!r}")
    if length > MAX_FRAME_BYTES:
        raise MalformedFrame(f"a frame has at most {MAX_FRAME_BYTES} bytes, this one announces {length}")
    return int(length)


def decode(body: bytes, kind: type[M]) -> M:
    """Parse a frame's body as a message of type `kind`. Raises MalformedFrame."""
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise MalformedFrame(f"the frame is not a {kind.DESCRIPTOR.name}: {error}") from None


class Channel:
    """One connection of the data channel, used by one thread at a time.

    Every method that moves bytes raises ConnectionLost when the peer closes or stalls.
    """

    def __init__(self, connection: socket.socket,
                 stall_timeout_seconds: float = STALL_TIMEOUT_SECONDS) -> None:
        connection.setblocking(True)
        self.is_local = connection.family == socket.AF_UNIX
        if not self.is_local:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self._timeouts = -1.0, -1.0     # to receive, to send
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self.protocol: str | None = None    # None: nobody has looked
        self.client = ""    # who has proved to be at the end that asks
        self.nonce = b""
        self._held = b""    # a frame that goes out with the next bytes, where the kernel does not join them
        self.short_in_a_row = 0     # requests
        self._begun = b""   # of a frame that had not come as a whole
        self._rest = b""    # of a frame that did not go at once
        self._sealed: Callable[[bytes], bytes] = bytes
        self._receive_now: Callable[[int, int], bytes] = connection.recv
        self.peer = _peer(connection)
        self.source = self.peer.rpartition(":")[0]
        """The address without the port; of a local socket, what a server says."""
        self.set_timeout(stall_timeout_seconds)

    def set_timeout(self, receive_seconds: float, send_seconds: float | None = None) -> None:
        """How long one call may wait without a single byte moving (send: the same unless given)."""
        wanted = receive_seconds, receive_seconds if send_seconds is None else send_seconds
        if wanted == self._timeouts:
            return
        for option, seconds, known in zip((socket.SO_RCVTIMEO, socket.SO_SNDTIMEO), wanted, self._timeouts,
                                          strict=True):
            if seconds != known:
                whole = int(seconds)
                self.socket.setsockopt(socket.SOL_SOCKET, option,
                                       _TIMEVAL.pack(whole, int((seconds - whole) * 1e6)))
        self._timeouts = wanted

    # ------------------------------------------------------------------ frames

    def send(self, message: Message, more: bool = False) -> None:
        """Send one frame; `more` holds it back until the raw bytes that follow. A request is told what it is part
        of."""
        if isinstance(message, _REQUESTS) and (traceparent := tracing.current()):
            message.traceparent = traceparent
        frame = encode(message)
        if self.is_local:
            frame, self._held = self._held + frame, b""
            if more:
                self._held = frame
                return
        try:
            self._send_frame(frame, more)
        except OSError as error:
            raise self._lost(error) from None

    def _send_frame(self, frame: bytes, more: bool) -> None:
        self.socket.sendall(frame, socket.MSG_MORE if more else 0)

    def send_now(self, frame: bytes) -> bool:
        """Send one frame without waiting; whether it is gone. If not, `send_rest` is to be called."""
        try:
            data = self._sealed(frame)
            try:
                sent = self.socket.send(data, _DONTWAIT)
            except BlockingIOError:
                sent = 0
        except OSError as error:
            raise self._lost(error) from None
        self._rest = data[sent:]
        return not self._rest

    def send_rest(self) -> None:
        """Send what `send_now` has left."""
        try:
            self.socket.sendall(self._rest)
        except OSError as error:
            raise self._lost(error) from None

    def _receive_waiting(self, count: int) -> bytes:
        return self.socket.recv(count, _WAITALL)

    def receive_alone(self, kind: type[M], *, wait: bool = True) -> M | None:
        """Like `receive`, with one system call mostly: the peer sends nothing more before it has an answer. Raises
        NotYet, if it is not to `wait`, where less than a frame has come; the next call goes on with that."""
        data, self._begun = self._begun, b""
        if not data:
            try:
                data = self._receive_now(_ALONE_BYTES, 0 if wait else _DONTWAIT)
            except OSError as error:
                if not wait and isinstance(error, BlockingIOError):
                    raise NotYet from None
                raise self._lost(error) from None
            if not data:
                return None
        if len(data) < HEADER.size:
            if not wait:
                self._begun = data
                raise NotYet
            data += self._receive_exactly(HEADER.size - len(data))
        missing = HEADER.size + body_length(data[:HEADER.size], self.peer) - len(data)
        if missing < 0:
            raise MalformedFrame(f"{-missing} bytes follow a frame that is to be answered first")
        if missing:
            if not wait:
                self._begun = data
                raise NotYet
            data += self._receive_exactly(missing)
        return decode(data[HEADER.size:], kind)

    def receive(self, kind: type[M], timeouts: tuple[float, float] | None = None) -> M | None:
        """The next frame as a message of type `kind`; None if the peer closed before its first byte. Once it has
        begun, `timeouts` are set.

        Raises MalformedFrame, after which the connection is of no more use.
        """
        header = self._receive_exactly(HEADER.size, may_end=True)
        if not header:
            return None
        length = body_length(header, self.peer)
        if timeouts is not None:
            self.set_timeout(*timeouts)
        return decode(self._receive_exactly(length) if length else b"", kind)

    def expect(self, kind: type[M]) -> M:
        """Like `receive`, but a closed connection is ConnectionLost."""
        return self._answered(self.receive(kind))

    def expect_alone(self, kind: type[M]) -> M:
        """Like `receive_alone`, but a closed connection is ConnectionLost."""
        return self._answered(self.receive_alone(kind))

    def _answered(self, message: M | None) -> M:
        if message is None:
            raise ConnectionLost(f"{self.peer} closed the connection instead of answering")
        return message

    # ------------------------------------------------------------------ raw bytes

    def send_bytes(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send `parts` one after the other without joining them."""
        queue = [memoryview(part).cast("B") for part in parts]
        if self._held:
            queue.insert(0, memoryview(self._held))
            self._held = b""
        try:
            while queue:
                sent = self.socket.sendmsg(queue[:_IOV_LIMIT])
                while queue and sent >= len(queue[0]):
                    sent -= len(queue.pop(0))
                if sent:
                    queue[0] = queue[0][sent:]
        except OSError as error:
            raise self._lost(error) from None

    def send_file(self, descriptor: int, offset: int, count: int) -> None:
        """Send `count` bytes of an open file from `offset`; inside the kernel, where that saves a copy.

        Raises EOFError if the file is shorter.
        """
        for size in in_turns(self.socket, count):
            if self.is_local or not self._checksums_in_hardware():
                # The kernel reads every byte for its checksum anyway, and page by page: large buffers are up to twice
                # as fast over interfaces such as those of an emulated fabric. A local socket wakes its reader once
                # for frame and bytes this way.
                for part in sending_files.by_buffer(descriptor, offset, size):
                    self.send_bytes([part])
            else:
                try:
                    sending_files.in_kernel(self.socket.fileno(), descriptor, offset, size)
                except OSError as error:
                    raise self._lost(error) from None
            offset += size

    def _checksums_in_hardware(self) -> bool:
        return self.socket.family != socket.AF_INET or checksums_in_hardware(self.socket.getsockname()[0])

    def receive_some(self, view: memoryview) -> int:
        """Receive at least one byte into `view` and return how many."""
        try:
            received = self.socket.recv_into(view)
        except OSError as error:
            raise self._lost(error) from None
        if not received:
            raise ConnectionLost(f"{self.peer} closed the connection in the middle")
        return received

    def receive_all(self, view: memoryview) -> None:
        """Fill `view`."""
        while view:
            try:
                received = self.socket.recv_into(view, 0, _WAITALL)
            except OSError as error:
                raise self._lost(error) from None
            if not received:
                raise ConnectionLost(f"{self.peer} closed the connection in the middle")
            view = view[received:]

    def discard(self, count: int) -> None:
        """Receive `count` bytes and forget them."""
        scratch = memoryview(bytearray(min(count, _DISCARD_BYTES)))
        while count:
            count -= self.receive_some(scratch[:count])

    def first_bytes(self, count: int) -> bytes:
        """The next bytes, which stay to be received; fewer if the peer sends no more."""
        try:
            return self.socket.recv(count, _WAITALL | _PEEK)
        except OSError as error:
            raise self._lost(error) from None

    # ------------------------------------------------------------------ life

    def is_readable(self, timeout_seconds: float) -> bool:
        """Whether a receive would not block, within `timeout_seconds`."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(timeout_seconds * 1000))

    @property
    def is_pending(self) -> bool:
        """Whether bytes have come that the kernel does not have any more."""
        return bool(self._begun)

    def is_idle(self) -> bool:
        """Whether the peer has neither closed nor sent anything: a pooled connection is still good."""
        return not self._poll.poll(0)   # a tenth of what it takes to peek and get an exception

    def close(self) -> None:
        """Close the connection; a thread blocked in it wakes up with ConnectionLost."""
        self.interrupt()
        self.socket.close()

    def interrupt(self) -> None:
        """End the conversation; the thread that has it wakes up with ConnectionLost and closes."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _receive_exactly(self, count: int, may_end: bool = False) -> bytes:
        parts: list[bytes] = []
        missing = count
        while missing:
            try:
                part = self._receive_waiting(missing)
            except OSError as error:
                raise self._lost(error) from None
            if not part:
                if may_end and missing == count:
                    return b""
                raise ConnectionLost(f"{self.peer} closed the connection in the middle of a frame")
            parts.append(part)
            missing -= len(part)
            if missing and len(parts) == MAX_PARTS:
                raise ConnectionLost(f"{self.peer} sends a frame too slowly")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _lost(self, error: OSError) -> SpeedwellError:
        if isinstance(error, BlockingIOError):
            return ConnectionLost(f"{self.peer} moved no byte within the time allowed")
        return ConnectionLost(f"the connection to {self.peer} broke: {reason(error)}")


def connect(host: str, port: int, *, timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
            stall_timeout_seconds: float = STALL_TIMEOUT_SECONDS,
            bound: socket.socket | None = None) -> Channel:
    """Connect to a dataserver, from the socket `bound` if the caller chose a local port.

    Raises ConnectionLost; `bound` is closed then.
    """
    return Channel(open_connection(host, port, timeout_seconds=timeout_seconds, bound=bound), stall_timeout_seconds)


def open_connection(host: str, port: int, *, timeout_seconds: float,
                    bound: socket.socket | None = None) -> socket.socket:
    """A connected socket with that timeout. Raises ConnectionLost; `bound` is closed then."""
    connection = bound or socket.socket(_family(host), socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_seconds)
        connection.connect((host, port))
        return connection
    except OSError as error:
        connection.close()
        is_late = isinstance(error, TimeoutError)
        why = f"no answer within {units.duration(timeout_seconds)}" if is_late else reason(error)
        raise ConnectionLost(f"cannot connect to {host}:{port}: {why}") from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _peer(connection: socket.socket) -> str:
    try:
        address = connection.getpeername()
    except OSError:
        return "the peer"
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) and len(address) >= 2 else "the peer"
