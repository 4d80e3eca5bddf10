"""The file that begins with a version's description, and what else is in it, each from a fixed offset on.

A directory's `meta` has the appends and, of a version made from another, the map of its blocks. A small file's
`<file id>.small` has the appends, the sums and the bytes themselves: to make a file costs more than to fill it.
"""

import os

from speedwell.fs.dataserver.disk import layout
from speedwell.fs.dataserver.disk.disk_errors import put
from speedwell.fs.dataserver.disk.layout import Runs

DESCRIPTION_BYTES = 32 * 1024
APPENDS_AT = DESCRIPTION_BYTES
MAP_AT = 76 * 1024

SMALL_SUFFIX = ".small"
SMALL_BYTES = 128 * 1024
"""A longer file has a directory."""
SMALL_DESCRIPTION_BYTES = 3968
SMALL_SUMS_AT = SMALL_DESCRIPTION_BYTES
SMALL_APPENDS_AT = 4096
SMALL_DATA_AT = 48 * 1024


def write_meta(path: str, description: bytes, appends: bytes, runs: Runs) -> None:
    """Make the `meta` of a directory that is not in its place yet. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        put(descriptor, description, 0)
        if appends:
            put(descriptor, appends, APPENDS_AT)
        if runs:
            put(descriptor, layout.encode(runs), MAP_AT)
    finally:
        os.close(descriptor)
