"""Whole files between the network and a file descriptor."""

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from speedwell.fs import tracing
from speedwell.fs.client.append.appender import Appender
from speedwell.fs.client.context import ClientContext
from speedwell.fs.client.read.plan import Source
from speedwell.fs.client.read.ranges import plan_parts, receiver_of
from speedwell.fs.client.read.receiver import RangeReceiver, Receiver
from speedwell.fs.proto.speedwell_pb2 import Attributes
from speedwell.fs.wire.channel import Channel

Progress = Callable[[int], None]

APPEND_BYTES = 64 << 20
SLICE_BYTES = 1 << 20
BLOCK_BYTES = 1 << 20


def receive_file(context: ClientContext, attributes: Attributes, destination_fd: int,
                 progress: Progress | None) -> int:
    """Write the file's bytes to `destination_fd`; returns how many.

    Where the controller names several replicas, a regular file is written at all their parts' offsets at once;
    what takes bytes in order only gets them in order. Raises what `RangeReceiver` raises, OSError for the
    destination's errors.
    """
    plan = plan_parts(context, attributes, 0, attributes.size)
    if isinstance(plan, list) and len(plan) > 1 and _takes_offsets(destination_fd):
        return _receive_side_by_side(context, attributes, plan, destination_fd, progress)
    receiver = receiver_of(context, attributes, plan, 0, attributes.size)
    try:
        _receive(receiver, destination_fd, None, progress)
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


def bytes_left(source_fd: int) -> int:
    """How many bytes a regular file has from its position to its end; 0 for what has no size."""
    status = os.fstat(source_fd)
    return max(status.st_size - os.lseek(source_fd, 0, os.SEEK_CUR), 0) if stat.S_ISREG(status.st_mode) else 0


# ------------------------------------------------------------------ private


def _takes_offsets(descriptor: int) -> bool:
    return (stat.S_ISREG(os.fstat(descriptor).st_mode)
            and not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND)


def _receive_side_by_side(context: ClientContext, attributes: Attributes, sources: Sequence[Source],
                          destination_fd: int, progress: Progress | None) -> int:
    """Every part in a thread of its own. The first failure stops all, and is raised when all have ended."""
    begin = os.lseek(destination_fd, 0, os.SEEK_CUR)
    receivers = [RangeReceiver(context, attributes, source.read.offset_bytes,
                               source.read.offset_bytes + source.read.size_bytes, steer=True, source=source)
                 for source in sources]
    errors: list[BaseException] = []
    lock = threading.Lock()

    def report(count: int) -> None:
        with lock:
            _report(progress, count)

    def receive(receiver: RangeReceiver) -> None:
        try:
            _receive(receiver, destination_fd, begin, report)
        except BaseException as error:
            errors.append(error)
            for other in receivers:
                other.close()

    with ThreadPoolExecutor(len(receivers), "part") as threads:
        try:
            wait([threads.submit(tracing.carried(receive), receiver) for receiver in receivers])
        finally:
            for receiver in receivers:
                receiver.close()
    if errors:
        raise errors[0]
    os.lseek(destination_fd, begin + attributes.size, os.SEEK_SET)
    return int(attributes.size)


def _receive(receiver: Receiver, destination_fd: int, begin: int | None, progress: Progress | None) -> None:
    """Write all that the receiver gives: where the destination stands, or at `begin` plus its place in the file."""
    block = memoryview(bytearray(BLOCK_BYTES))
    while True:
        place = None if begin is None else begin + receiver.position
        received = receiver.receive_into(block)
        if not received:
            return
        _write_all(destination_fd, block[:received], place)
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


def _write_all(descriptor: int, view: memoryview, place: int | None) -> None:
    while view:
        if place is None:
            written = os.write(descriptor, view)
        else:
            written = os.pwrite(descriptor, view, place)
            place += written
        view = view[written:]


def _report(progress: Progress | None, count: int) -> None:
    if progress is not None:
        progress(count)
