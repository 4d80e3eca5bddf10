"""Talking to a server on the same host: a local socket instead of TCP, and descriptors instead of bytes.

The server listens under an abstract name with its address in it, which is seen in its network namespace only: on an
emulated host nobody takes another host's server for its own. A dataserver may answer a read with the descriptors of
the files that hold the bytes (`DataReply.pieces`): the client reads them from the kernel's cache itself, and the
bytes cross no socket. HDFS calls that a short-circuit read.
"""

import os
import socket
import struct
import threading
from collections import deque

from speedwell.fs.wire.channel import Channel, ConnectionLost

MAX_DESCRIPTORS = 64
"""An answer with more pieces sends their bytes."""

_BACKLOG = 128
_READ_AHEAD_BYTES = 4 << 20
_CREDENTIALS = struct.Struct("3i")


def name_of(host: str, port: int) -> bytes:
    """The abstract name of the server that others reach at `host`:`port`."""
    return b"\0speedwell %s:%d" % (host.encode(), port)


def listen(host: str, port: int) -> socket.socket | None:
    """A listening socket for clients on this host; None where it cannot be had: they use TCP then."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(name_of(host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        return None
    return listener


def connect(host: str, port: int, stall_timeout_seconds: float) -> "LocalChannel | None":
    """A connection to a server on this host; None if there is none, or another user's than root's or our own."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(name_of(host, port))
        if is_own(connection):
            return LocalChannel(connection, stall_timeout_seconds)
    except OSError:
        pass
    connection.close()
    return None


def user_of(connection: socket.socket) -> int:
    """Who is at the other end of a local connection."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(packed)[1])


def is_own(connection: socket.socket) -> bool:
    """Whether the other end of a local connection was root's or our own user's when it was made."""
    return user_of(connection) in (0, os.geteuid())


def send_descriptors(channel: Channel, descriptors: list[int]) -> None:
    """Hand over open files, which `LocalChannel.take_pieces` receives. Raises ConnectionLost."""
    channel.send_bytes([])
    try:
        socket.send_fds(channel.socket, [b"\0"], descriptors)
    except OSError as error:
        raise ConnectionLost(f"the connection broke: {error.strerror or error}") from None


class LocalChannel(Channel):
    """A client's connection over a local socket. `receive_all` takes the bytes of handed-over files first."""

    def __init__(self, connection: socket.socket, stall_timeout_seconds: float) -> None:
        super().__init__(connection, stall_timeout_seconds)
        self._pieces: deque[tuple[int, int, int]] = deque()  # descriptor, offset, bytes
        self._asked = 0     # up to which offset of the first of them the kernel reads ahead
        self._reading = threading.Lock()    # else another thread's `close` might close what is being read

    def take_pieces(self, pieces: list[tuple[int, int]]) -> None:
        """Receive the open files that hold the next bytes: (offset, bytes) in each. Raises ConnectionLost."""
        try:
            _, descriptors, _, _ = socket.recv_fds(self.socket, 1, len(pieces), socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise self._lost(error) from None
        self._pieces.extend((descriptor, offset, count)
                            for descriptor, (offset, count) in zip(descriptors, pieces, strict=False))
        self._asked = 0
        if len(descriptors) != len(pieces):
            raise ConnectionLost(f"{self.peer} handed over too few files")

    def receive_all(self, view: memoryview) -> None:
        with self._reading:
            while view and self._pieces:
                view = view[self._read(view):]
        if view:
            super().receive_all(view)

    def close(self) -> None:
        super().close()
        with self._reading:
            while self._pieces:
                os.close(self._pieces.popleft()[0])

    def _read(self, view: memoryview) -> int:
        descriptor, offset, count = self._pieces[0]
        self._read_ahead(descriptor, offset, count)
        try:
            received = os.preadv(descriptor, [view[:count]], offset)
        except OSError as error:
            raise self._lost(error) from None
        if not received:
            raise ConnectionLost("a file that was handed over ends early")
        if received == count:
            os.close(self._pieces.popleft()[0])
            self._asked = 0
        else:
            self._pieces[0] = descriptor, offset + received, count - received
        return received

    def _read_ahead(self, descriptor: int, offset: int, count: int) -> None:
        """The kernel's own read-ahead is too short for a disk that answers many requests at once."""
        ahead = min(offset + count, offset + _READ_AHEAD_BYTES)
        begin = max(self._asked, offset)
        if ahead - begin >= _READ_AHEAD_BYTES // 4:
            os.posix_fadvise(descriptor, begin, ahead - begin, os.POSIX_FADV_WILLNEED)
            self._asked = ahead
