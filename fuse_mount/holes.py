"""What lseek(2) says of a file that is open, with what is not published yet."""

import errno
import os
from collections.abc import Iterator

from fs.client import Reader
from fuse_mount.staging import Source, Staging


def data_in(reader: Reader, staging: Staging | None, offset: int) -> Iterator[tuple[int, int]]:
    """What is not in holes from `offset` on, of what `staging` makes of what is read: begin and end of each."""
    if staging is None:
        yield from reader.data(offset)
        return
    for piece in staging.pieces(offset, staging.size):
        if piece.source is Source.STAGED:
            yield piece.begin, piece.end
        elif piece.source is Source.BASE:
            for begin, end in reader.data(piece.begin):
                if begin >= piece.end:
                    break
                yield begin, min(end, piece.end)


def seek(data: Iterator[tuple[int, int]], offset: int, whence: int) -> int:
    """The next byte of `data`, or with SEEK_HOLE the next that is none. Raises OSError(ENXIO): there is no data."""
    position = offset
    for begin, end in data:
        if whence == os.SEEK_DATA:
            return begin
        if begin > position:
            break
        position = end
    if whence == os.SEEK_DATA:
        raise OSError(errno.ENXIO, "there are only holes up to the end")
    return position
