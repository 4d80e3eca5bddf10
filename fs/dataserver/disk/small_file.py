"""A small file that grows.

As long as a file is small, one file of the disk has all of it (`record`). When it grows beyond that, or a version
is made from it, it gets its directory. That has its place only when it is complete: who finds both after a crash
takes the directory.
"""

import contextlib
import os
import shutil
import threading

from speedwell.fs.checksums import SUM_BYTES, blocks_of
from speedwell.fs.dataserver.disk.disk_errors import write_file
from speedwell.fs.dataserver.disk.stored_file import StoredFile
from speedwell.fs.dataserver.disk.version_file import SMALL_DATA_AT, SMALL_SUMS_AT, write_meta

_enlarging = threading.Lock()


def enlarge(file: StoredFile, end: int) -> None:
    """Give a small file its directory, with its bytes up to `end`, uncommitted ones too.

    The caller has the file's turn. Raises OSError, StorageFailed: then it is a small file still.
    """
    with _enlarging:
        if not file.small:
            return
        file.ordering.log(file.length)  # else somebody might look for it while it moves
        made_in = file.made_in
        shutil.rmtree(made_in, ignore_errors=True)
        try:
            os.mkdir(made_in)  # noqa: PTH102
            _fill(file, made_in, end)
            os.rename(made_in, file.directory)  # noqa: PTH104
        except OSError:
            shutil.rmtree(made_in, ignore_errors=True)
            raise
        small, file.small = file.record, False
        file.synced_length, file.names_synced = 0, False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(small)  # noqa: PTH108


def _fill(file: StoredFile, directory: str, end: int) -> None:
    whole_blocks = max(0, blocks_of(file.length) - 1)
    source = os.open(file.record, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = {"sums": os.pread(source, whole_blocks * SUM_BYTES, SMALL_SUMS_AT),
                 "1": os.pread(source, end, SMALL_DATA_AT)}
    finally:
        os.close(source)
    for name, content in parts.items():
        if content:
            write_file(f"{directory}/{name}", content)
    write_meta(f"{directory}/meta", file.description(), file.stored_appends(), file.runs)
