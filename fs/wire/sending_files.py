"""The bytes of an open file on their way to a socket: inside the kernel, or by buffer. Both raise EOFError if the
file is shorter than it should be."""

import os
from collections.abc import Iterator

BUFFER_BYTES = 1 << 20
STEP_BYTES = 1 << 20
READ_AHEAD_BYTES = 4 << 20


def in_kernel(connection: int, descriptor: int, offset: int, count: int) -> None:
    """Send `count` bytes from `offset`. Raises OSError for the connection."""
    end = asked = offset + count
    if count > STEP_BYTES:
        asked = offset
    while count:
        if asked < end:     # the kernel reads ahead too little for a disk that answers many requests at once
            ahead = min(end, offset + READ_AHEAD_BYTES)
            if ahead > asked:
                os.posix_fadvise(descriptor, asked, ahead - asked, os.POSIX_FADV_WILLNEED)
            asked = ahead
        sent = os.sendfile(connection, descriptor, offset, min(count, STEP_BYTES))
        if sent == 0:
            raise EOFError(f"the file ends {count} bytes early")
        offset += sent
        count -= sent


def by_buffer(descriptor: int, offset: int, count: int) -> Iterator[memoryview]:
    """The `count` bytes from `offset`, one part after the other in the same buffer."""
    buffer = memoryview(bytearray(min(count, BUFFER_BYTES)))
    while count:
        read = os.preadv(descriptor, [buffer[:count]], offset)
        if read == 0:
            raise EOFError(f"the file ends {count} bytes early")
        yield buffer[:read]
        offset += read
        count -= read
