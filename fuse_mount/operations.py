"""The filesystem as the kernel asks for it: FUSE operations over the client library."""

import logging
import os

from fuse_mount.door import Path
from fuse_mount.extended_attribute_operations import ExtendedAttributeOperations
from fuse_mount.file_operations import FileOperations
from fuse_mount.name_operations import NameOperations

log = logging.getLogger(__name__)


class SpeedwellOperations(NameOperations, ExtendedAttributeOperations, FileOperations):
    """One mounted filesystem; the methods are those of libfuse's `struct fuse_operations`."""

    # For the libraries: times are nanoseconds; and for libfuse 2: UTIME_OMIT is understood, and so is a request
    # about an open file without a name.
    use_ns = True
    flag_utime_omit_ok = 1
    flag_nullpath_ok = 1

    def init(self, path: Path) -> None:
        self._on_mounted()

    def destroy(self, path: Path) -> None:
        for name, error in self._files.flush_all():
            log.error("%s: not everything written was saved: %s", os.fsdecode(name), error)
        self._session.end()
