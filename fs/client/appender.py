"""Appending to one file: buffered, written behind, acknowledged by every live replica."""

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType

from fs.channel import MAX_APPEND_BYTES, Channel
from fs.client.append_request import AppendRequests
from fs.client.context import ClientContext
from fs.errors import FileClosed, InvalidArgument, SpeedwellError
from fs.proto.speedwell_pb2 import Attributes

PIECE_BYTES = 4 << 20
BUFFERED_BYTES = 16 << 20
JOINED_BYTES = 64 * 1024
"""Smaller writes are copied together; larger ones are sent from where they are."""

IDLE_SECONDS = 5.0

Data = bytes | bytearray | memoryview
Parts = list[bytes | bytearray]


class Appender:
    """Appends to one file. Thread-safe. Use it as a context manager, or call `close`.

    `write` buffers; a background thread sends full pieces, at most 16 MiB wait. One `write` is never
    torn: its bytes are neighbours in the file whoever else appends. After an error the appender is failed:
    every later call raises the same error. What was acknowledged before stays in the file.
    """

    def __init__(self, context: ClientContext, attributes: Attributes, path: bytes) -> None:
        self.path = path
        self._requests = AppendRequests(context, attributes, path)
        self._tail: Parts = []
        self._tail_bytes = 0
        self._queue: deque[tuple[Parts, int]] = deque()
        self._waiting_bytes = 0     # tail, queue and the piece that is being sent
        self._sending = False
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
        InvalidArgument for more than 1 GiB at once.
        """
        length = _checked_length(data)
        with self._changed:
            self._check()
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
        return length

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
        self._drain()
        with self._changed:
            self._changed.wait_for(lambda: not self._sending)
            self._check()
            self._sending = True
            self._waiting_bytes += length
        return self._send(send, length)

    def flush(self) -> Attributes:
        """Wait until all live replicas hold everything written, publish the new length at the nameserver.

        No request is sent when nothing was written since the last flush. Raises like `write`, and
        StaleFile if the file was truncated or replaced meanwhile.
        """
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
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            if self._error is None:
                self._requests.close()

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

    def _queue_tail(self) -> None:
        if not self._tail:
            return
        self._queue.append((self._tail, self._tail_bytes))
        self._tail, self._tail_bytes = [], 0
        if self._has_thread:
            self._changed.notify_all()
        else:
            self._has_thread = True
            threading.Thread(target=self._send_behind, name="append", daemon=True).start()

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
                parts, length = self._queue.popleft()
                self._sending = True
            try:
                self._send(lambda channel, parts=parts: channel.send_bytes(parts), length)  # type: ignore[misc]
            except SpeedwellError:
                continue  # kept for the next call of the user

    def _send(self, send: Callable[[Channel], None], length: int) -> int:
        """Send one piece; the caller has set `_sending`."""
        failure: SpeedwellError | None = None
        try:
            return self._requests.append(send, length)
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
        """Wait until everything written is acknowledged; the last piece is sent by the caller's own thread."""
        with self._changed:
            self._check()
            self._changed.wait_for(lambda: self._error or not (self._queue or self._sending))
            self._check()
            if not self._tail:
                return
            parts, length = self._tail, self._tail_bytes
            self._tail, self._tail_bytes = [], 0
            self._sending = True
        try:
            self._send(lambda channel: channel.send_bytes(parts), length)
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
