"""The filesystem as the kernel asks for it: FUSE operations over the client library."""

import logging

from speedwell.fuse_mount.extended_attribute_operations import ExtendedAttributeOperations
from speedwell.fuse_mount.file_operations import FileOperations

log = logging.getLogger(__name__)


class SpeedwellOperations(FileOperations, ExtendedAttributeOperations):
    """One mounted filesystem; its methods return what libfuse's `struct fuse_lowlevel_ops` answers."""

    @property
    def open_files(self) -> int:
        """Descriptors that programs have."""
        return len(self._files)

    def init(self) -> None:
        self._on_mounted()

    def destroy(self) -> bool:
        """Whether everything that was written is saved."""
        failures = self._files.flush_all()
        for inode, error in failures:
            log.error("inode %d: not everything written was saved: %s", inode, error)
        self._session.end()
        return not failures
