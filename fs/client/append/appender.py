"""Appending to one file: buffered, written behind, acknowledged by every live replica."""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from speedwell.fs import tracing
from speedwell.fs.client.append.append_request import AppendRequests, Begun
from speedwell.fs.client.context import ClientContext
from speedwell.fs.errors import FileClosed, InvalidArgument, NameserverUnavailable, SpeedwellError
from speedwell.fs.limits import MAX_FILE_BYTES, require_possible_length
from speedwell.fs.proto.speedwell_pb2 import Attributes
from speedwell.fs.tracing import Within
from speedwell.fs.wire.channel import MAX_APPEND_BYTES, Channel

PIECE_BYTES = 4 << 20
BUFFERED_BYTES = 16 << 20
JOINED_BYTES = 64 * 1024
"""Smaller writes are copied together; larger ones are sent from where they are."""

AT_ONCE_BYTES = range(16 * 1024, 128 * 1024)
"""A first write of so many bytes is mostly the whole file: programs that copy have a larger block. It is sent at
once, so that the dataserver has it done when the program closes the file."""

IDLE_SECONDS = 5.0

Data = bytes | bytearray | memoryview
Parts = list[bytes | bytearray]


@dataclass
class Piece:
    """Bytes for one append; `begun` if they have been sent."""

    parts: Parts
    length: int
    begun: Begun | None = None

    def send(self, channel: Channel) -> None:
        channel.send_bytes(self.parts)


class Appender:
    """Appends to one file. Thread-safe. Use it as a context manager, or call `close`.

    `write` buffers; a background thread sends full pieces, at most 16 MiB wait. One `write` is never
    torn: its bytes are neighbours in the file whoever else appends. After an error the appender is failed:
    every later call raises the same error. What was acknowledged before stays in the file.
    """

    def __init__(self, context: ClientContext, attributes: Attributes, path: bytes) -> None:
        self.path = path
        self._span = tracing.Span("append")
        self._requests = AppendRequests(context, attributes, path)
        self._tail: Parts = []
        self._tail_bytes = 0
        self._queue: deque[Piece] = deque()
        self._waiting_bytes = 0     # tail, queue and the piece that is being sent
        self._sending = False
        self._sent_any = False
        self._has_thread = False
        self._error: SpeedwellError | None = None
        self._raised = False
        self._closed = False
        self._changed = threading.Condition()

    @property
    def attributes(self) -> Attributes:
        """As of the open or the last flush."""
        return self._requests.attributes

    @property
    def size(self) -> int:
        """Length of the file in bytes once everything written here is flushed (if nobody else appends)."""
        return self._requests.end + self._waiting_bytes

    def write(self, data: Data) -> int:
        """Buffer `data` for appending and return its length. Blocks while 16 MiB wait.

        Raises what an earlier piece failed with: AppendFailed, NoSpace, NoReplicaAvailable; FileClosed;
        InvalidArgument for more than 1 GiB at once; FileTooLarge.
        """
        length = _checked_length(data)
        with self._changed:
            if self._only_joins(length):
                self._add_to_tail(data, length)
            else:
                with Within(self._span.traceparent):
                    self._write(data, length)
        return length

    def _only_joins(self, length: int) -> bool:
        """Whether so many bytes more are nothing to send, to wait for or to refuse: most small writes."""
        return bool(self._tail) and self._tail_bytes + length < PIECE_BYTES and \
            self._waiting_bytes + length <= BUFFERED_BYTES and self.size + length <= MAX_FILE_BYTES and \
            self._error is None and not self._closed

    def _write(self, data: Data, length: int) -> None:
        self._check()
        require_possible_length(self.size + length)
        while self._waiting_bytes and self._waiting_bytes + length > BUFFERED_BYTES:
            self._queue_tail()
            self._changed.wait()
            self._check()
        if length >= PIECE_BYTES:
            self._queue_tail()
        if length:
            self._add_to_tail(data, length)
        if self._tail_bytes >= PIECE_BYTES:
            self._queue_tail()
        elif not self._sent_any and length in AT_ONCE_BYTES and self._tail_bytes == length:
            self._begin_tail()

    def append_record(self, data: Data) -> int:
        """Append `data` now, after everything written before, and publish it; returns its offset."""
        _checked_length(data)
        whole = bytes(data)
        self._drain()
        offset = self.append_with(lambda channel: channel.send_bytes([whole]), len(whole)) if whole else self.size
        self.flush()
        return offset

    def append_with(self, send: Callable[[Channel], None], length: int) -> int:
        """Append `length` bytes that `send` puts on the channel, after everything written before.

        `send` may be called a second time, with another channel. Returns the offset of the bytes.
        """
        with Within(self._span.traceparent):
            while True:
                self._drain()
                with self._changed:
                    self._changed.wait_for(lambda: not self._sending)
                    self._check()
                    require_possible_length(self.size + length)
                    if self._queue:
                        continue    # another thread has written meanwhile
                    self._sending = self._sent_any = True
                    self._waiting_bytes += length
                    break
            return self._send(send, length)

    def flush(self) -> Attributes:
        """Wait until all live replicas hold everything written, publish the new length at the nameserver.

        No request is sent when nothing was written since the last flush. Raises like `write`, and
        StaleFile if the file was truncated or replaced meanwhile.
        """
        with Within(self._span.traceparent):
            try:
                self._drain()
            finally:
                self._publish()
        return self.attributes

    def close(self) -> None:
        """Flush and release. Raises like `flush`, unless that error was already raised to the caller."""
        if self._closed:
            return
        try:
            if not self._raised:
                self.flush()
            elif not isinstance(self._error, NameserverUnavailable):
                with suppress(SpeedwellError), Within(self._span.traceparent):
                    self._requests.publish()    # what was acknowledged before the error
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            for piece in self._queue:
                if piece.begun is not None:
                    piece.begun.channel.close()
            if self._error is None:
                self._requests.close()
            self._span.end(self._error)

    def __enter__(self) -> "Appender":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------ private

    def _check(self) -> None:
        if self._closed:
            raise FileClosed("the appender is closed")
        if self._error is not None:
            self._raised = True
            raise self._error

    def _add_to_tail(self, data: Data, length: int) -> None:
        last = self._tail[-1] if self._tail else None
        if length >= JOINED_BYTES:
            self._tail.append(bytes(data))
        elif isinstance(last, bytearray) and len(last) < JOINED_BYTES:
            last += data
        else:
            self._tail.append(bytearray(data))
        self._tail_bytes += length
        self._waiting_bytes += length

    def _take_tail(self) -> Piece:
        piece = Piece(self._tail, self._tail_bytes)
        self._tail, self._tail_bytes = [], 0
        return piece

    def _queue_tail(self) -> None:
        if self._tail:
            self._sent_any = True
            self._queue.append(self._take_tail())
        if not self._queue:
            return
        if self._has_thread:
            self._changed.notify_all()
        else:
            self._has_thread = True
            threading.Thread(target=tracing.carried(self._send_behind), name="append", daemon=True).start()

    def _begin_tail(self) -> None:
        """Send the tail; whoever needs it done waits for the answer."""
        self._sent_any = True
        piece = self._take_tail()
        try:
            piece.begun = self._requests.begin(piece.send, piece.length)
        except SpeedwellError as error:
            self._error = error
            self._check()
        self._queue.append(piece)

    def _send_behind(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._error or self._closed or (self._queue and not self._sending),
                                       IDLE_SECONDS)
                if not self._queue or self._error:
                    self._has_thread = False
                    return
                if self._sending:
                    continue
                piece = self._queue.popleft()
                self._sending = True
            try:
                self._send(piece.send, piece.length, piece.begun)
            except SpeedwellError:
                continue  # kept for the next call of the user

    def _send(self, send: Callable[[Channel], None], length: int, begun: Begun | None = None) -> int:
        """Send one piece; the caller has set `_sending`."""
        failure: SpeedwellError | None = None
        try:
            return self._requests.append(send, length, begun)
        except SpeedwellError as error:
            failure = error
            raise
        finally:
            with self._changed:
                self._error = self._error or failure
                self._sending = False
                self._waiting_bytes -= length
                self._changed.notify_all()

    def _drain(self) -> None:
        """Wait until everything written is acknowledged; what no thread is to send is sent by the caller's own."""
        while True:
            with self._changed:
                self._check()
                self._changed.wait_for(
                    lambda: self._error or not (self._sending or (self._queue and self._has_thread)))
                self._check()
                if not self._queue and not self._tail:
                    return
                self._sent_any = True
                piece = self._queue.popleft() if self._queue else self._take_tail()
                self._sending = True
            try:
                self._send(piece.send, piece.length, piece.begun)
            except SpeedwellError:
                self._raised = True
                raise

    def _publish(self) -> None:
        try:
            self._requests.publish()
        except SpeedwellError as error:
            with self._changed:
                self._error = self._error or error
                self._raised = True
            raise self._error from None


def _checked_length(data: Data) -> int:
    length = memoryview(data).nbytes
    if length > MAX_APPEND_BYTES:
        raise InvalidArgument(f"data: {length} bytes, at most {MAX_APPEND_BYTES} can be appended at once")
    return length
