"""Whole files between the network and a file descriptor, inside the kernel where it can."""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fs.channel import Channel
from fs.client.appender import Appender
from fs.client.context import ClientContext
from fs.client.receiver import RangeReceiver
from fs.proto.speedwell_pb2 import Attributes

Progress = Callable[[int], None]

PIPE_BYTES = 1 << 20
APPEND_BYTES = 64 << 20
SLICE_BYTES = 1 << 20
BLOCK_BYTES = 1 << 20


def receive_file(context: ClientContext, attributes: Attributes, destination_fd: int,
                 progress: Progress | None) -> int:
    """Write the file's bytes to `destination_fd`; returns how many.

    Raises what `RangeReceiver` raises, OSError for the destination's errors.
    """
    receiver = RangeReceiver(context, attributes, 0, attributes.size, steer=True)
    try:
        if not _splice_all(receiver, destination_fd, progress):
            _copy_all(receiver, destination_fd, progress)
        return receiver.position
    finally:
        receiver.close()


def send_file(appender: Appender, source_fd: int, progress: Progress | None) -> int:
    """Append what `source_fd` holds from its position to its end; returns how many bytes.

    Raises what `Appender` raises, OSError for the source's errors.
    """
    if not stat.S_ISREG(os.fstat(source_fd).st_mode):
        return _send_blocks(appender, source_fd, progress)
    offset = start = os.lseek(source_fd, 0, os.SEEK_CUR)
    while (length := min(os.fstat(source_fd).st_size - offset, APPEND_BYTES)) > 0:
        appender.append_with(_slices(source_fd, offset, length, progress), length)
        offset += length
    os.lseek(source_fd, offset, os.SEEK_SET)
    return max(0, offset - start)


# ------------------------------------------------------------------ private


def _splice_all(receiver: RangeReceiver, destination_fd: int, progress: Progress | None) -> bool:
    """Move everything without copying it to this process; False where the destination does not take that."""
    with _pipe() as (outlet, inlet):
        while (channel := receiver.ready()) is not None:
            try:
                moved = os.splice(channel.socket.fileno(), inlet, min(receiver.available, PIPE_BYTES))
            except OSError as error:
                receiver.failed(error.strerror or str(error))
                continue
            if not moved:
                receiver.failed("closed the connection in the middle")
                continue
            receiver.advance(moved)
            left = moved
            while left:
                try:
                    left -= os.splice(outlet, destination_fd, left)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    _write_all(destination_fd, memoryview(_read_exactly(outlet, left)))
                    _report(progress, moved)
                    return False
            _report(progress, moved)
    return True


def _copy_all(receiver: RangeReceiver, destination_fd: int, progress: Progress | None) -> None:
    block = memoryview(bytearray(BLOCK_BYTES))
    while received := receiver.receive_into(block):
        _write_all(destination_fd, block[:received])
        _report(progress, received)


def _slices(source_fd: int, offset: int, length: int, progress: Progress | None) -> Callable[[Channel], None]:
    reported = 0

    def send(channel: Channel) -> None:
        nonlocal reported
        sent = 0
        while sent < length:
            count = min(SLICE_BYTES, length - sent)
            try:
                channel.send_file(source_fd, offset + sent, count)
            except EOFError:
                raise OSError(errno.EIO, "the file became shorter while it was read") from None
            sent += count
            if sent > reported:  # a repeated append is not progress
                _report(progress, sent - reported)
                reported = sent

    return send


def _send_blocks(appender: Appender, source_fd: int, progress: Progress | None) -> int:
    total = 0
    while block := os.read(source_fd, BLOCK_BYTES):
        appender.write(block)
        total += len(block)
        _report(progress, len(block))
    return total


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    outlet, inlet = os.pipe()
    try:
        fcntl.fcntl(inlet, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        yield outlet, inlet
    finally:
        os.close(outlet)
        os.close(inlet)


def _read_exactly(descriptor: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(descriptor, count)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _write_all(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view):]


def _report(progress: Progress | None, count: int) -> None:
    if progress is not None:
        progress(count)
