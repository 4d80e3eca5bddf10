"""Reading one file: a read-ahead stream for sequential reads, small requests for the others."""

import threading
from collections.abc import Iterator
from types import TracebackType

from speedwell.fs.client.context import ClientContext
from speedwell.fs.client.read.holes import Holes
from speedwell.fs.client.read.ranges import open_range
from speedwell.fs.client.read.receiver import RangeReceiver
from speedwell.fs.client.read.steering import SteeredRead
from speedwell.fs.client.read.stream import AHEAD_BYTES, ReadAhead
from speedwell.fs.client.read.strong import strong_length
from speedwell.fs.errors import FileClosed, InvalidArgument
from speedwell.fs.proto.speedwell_pb2 import Attributes
from speedwell.fs.tracing import Span, Within

STREAM_AT_ONCE_BYTES = 64 * 1024
"""A first read of this size at the beginning of a file announces a sequential one."""

READS_BEFORE_STREAM = 2
FIRST_WINDOW_BYTES = 4 << 20
STEER_DIRECT_BYTES = 4 << 20


class Reader:
    """Reads one file. Thread-safe. Use it as a context manager, or call `close`.

    Sequential reads (from several threads, slightly out of order too) are served from a stream that the
    controller placed and that the kernel receives ahead. Other reads are requests of their own to the nearest
    replica. A replica that fails is replaced by another at the offset reached.
    """

    def __init__(self, context: ClientContext, attributes: Attributes, path: bytes, strong: bool = False) -> None:
        """With `strong`, reads of the last chunk and beyond see every append acknowledged before they began."""
        self.path = path
        self._span = Span("read")
        self._strong = strong
        self._context = context
        self._attributes = attributes
        self._size = attributes.size
        self._lock = threading.Lock()
        self._stream: ReadAhead | None = None
        self._last_read: SteeredRead | None = None
        self._last_sources: tuple[SteeredRead, ...] = ()
        self._next_offset = 0
        self._in_a_row = 0
        self._window_bytes = 0  # 0: all that is left
        self._closed = False
        self._holes = Holes(context, attributes)

    @property
    def attributes(self) -> Attributes:
        """As of the open."""
        return self._attributes

    @property
    def size(self) -> int:
        """Length in bytes: the committed length at open, or a later one that a dataserver reported."""
        return self._size

    @property
    def last_read(self) -> SteeredRead | None:
        """Where the newest stream came from, or the first request if there was no stream; None before."""
        return self._last_read

    @property
    def last_sources(self) -> tuple[SteeredRead, ...]:
        """Every replica that the newest stream came from: its parts, and who took over for one that failed."""
        return self._last_sources

    def read(self, offset: int, size: int) -> bytes:
        """The bytes from `offset`, fewer than `size` only at the end of the file.

        Raises ReadFailed or NoReplicaAvailable (the message says what was tried), StaleFile when the
        content is gone, InvalidArgument for a negative offset or size, FileClosed.
        """
        self._check(offset, size)
        with Within(self._span.traceparent):
            self._refresh(offset + size)
            length = max(0, min(size, self._size - offset))
            if length:
                with self._lock:
                    stream = self._stream_for(offset, length)
                    if stream is not None:
                        data = stream.read(offset, length)
                        self._streamed(stream)
                        return data
            buffer = bytearray(length or size)
            return bytes(buffer[:self._read_direct(offset, memoryview(buffer))])

    def readinto(self, offset: int, buffer: bytearray | memoryview) -> int:
        """Like `read`, into a writable buffer; returns the number of bytes."""
        view = memoryview(buffer).cast("B")
        self._check(offset, len(view))
        with Within(self._span.traceparent):
            self._refresh(offset + len(view))
            length = max(0, min(len(view), self._size - offset))
            if length:
                view = view[:length]
                with self._lock:
                    stream = self._stream_for(offset, length)
                    if stream is not None:
                        stream.read_into(offset, view)
                        self._streamed(stream)
                        return length
            return self._read_direct(offset, view)

    def _refresh(self, end: int) -> None:
        """Before a strong read up to `end`: ask the primary how long the file is by now."""
        chunk = self._attributes.chunk_size
        if self._strong and end > max(self._size - 1, 0) // chunk * chunk:
            length, self._attributes = strong_length(self._context, self._attributes)
            self._size = max(self._size, length)

    def data(self, offset: int) -> Iterator[tuple[int, int]]:
        """Where bytes from `offset` on are that are not in holes: begin and end of each piece."""
        self._check(offset, 0)
        self._refresh(self._size + 1)
        return self._holes.data(offset, self._size)

    def grown_to(self, size: int) -> None:
        """Read up to this committed length from now on, if it is more than the reader knows of."""
        self._size = max(self._size, size)

    def rest(self) -> None:
        """Stop the stream; reads still work."""
        with self._lock:
            stream, self._stream = self._stream, None
            if stream is not None:
                stream.receiver.close()

    def close(self) -> None:
        """Stop the stream and release everything. Never raises."""
        self._closed = True
        stream = self._stream
        if stream is not None:
            with Within(self._span.traceparent):
                stream.receiver.close()
        self._span.end()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------ private

    def _check(self, offset: int, size: int) -> None:
        if self._closed:
            raise FileClosed("the reader is closed")
        if offset < 0:
            raise InvalidArgument(f"offset: {offset} is negative")
        if size < 0:
            raise InvalidArgument(f"size: {size} is negative")

    def _stream_for(self, offset: int, length: int) -> ReadAhead | None:
        """The stream that serves this read, None if it is to be a request of its own."""
        stream = self._stream
        if stream is not None:
            if stream.covers(offset, length):
                self._next_offset = max(self._next_offset, offset + length)
                return stream
            if offset < stream.receiver.position and stream.receiver.position - offset <= AHEAD_BYTES:
                return None  # a late or repeated read near the stream does not end it
        in_order = abs(offset - self._next_offset) <= AHEAD_BYTES if self._in_a_row else offset == self._next_offset
        self._in_a_row = self._in_a_row + 1 if in_order else 0
        self._next_offset = offset + length
        if stream is not None:
            self._leave(stream, in_order)
        starts_big = offset == 0 and length >= STREAM_AT_ONCE_BYTES and not self._window_bytes
        if not starts_big and self._in_a_row < READS_BEFORE_STREAM:
            return None
        if length >= self._size - offset and length < self._context.steer_min_bytes:
            return None  # one request of its own brings the rest of the file
        stop = min(self._size, offset + max(self._window_bytes, length)) if self._window_bytes else self._size
        self._stream = ReadAhead(open_range(self._context, self._attributes, offset, stop))
        if self._closed:
            self._stream.receiver.close()  # meanwhile: `close` did not see it
        return self._stream

    def _leave(self, stream: ReadAhead, in_order: bool) -> None:
        """End a stream: consumed as expected the next one may be longer, after a seek it starts small."""
        self._stream = None
        stream.receiver.close()
        if in_order and self._window_bytes:
            self._window_bytes *= 4
        elif not in_order and stream.receiver.position < stream.receiver.stop:
            self._window_bytes = FIRST_WINDOW_BYTES

    def _streamed(self, stream: ReadAhead) -> None:
        self._last_read = stream.receiver.current or self._last_read
        self._last_sources = stream.receiver.sources
        self._size = max(self._size, stream.receiver.file_size)

    def _read_direct(self, offset: int, view: memoryview) -> int:
        if not view:
            return 0
        receiver = RangeReceiver(self._context, self._attributes, offset, offset + len(view),
                                 steer=len(view) >= STEER_DIRECT_BYTES, short=offset + len(view) > self._size)
        try:
            received = receiver.receive_all(view)
        finally:
            receiver.close()
        self._last_read = self._last_read or receiver.current
        self._size = max(self._size, receiver.file_size)
        return received
