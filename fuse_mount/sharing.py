"""Giving other mounts what was written here, and taking over what they wrote."""

import os

from fs.errors import LocksLost, NoSuchFile
from fuse_mount.door import FileInfo, Path
from fuse_mount.open_file import Handle, OpenFile
from fuse_mount.shared import SharedState


class Sharing(SharedState):
    """Both directions, with what the kernel has to be told about it."""

    def _flush(self, path: Path | None, info: FileInfo) -> int:
        handle = self._files.handle(info.fh)
        self._require_locks(handle)
        if handle.wrote:
            handle.raise_failure()
            before = handle.file.attributes
            handle.file.flush()
            name = handle.path if path is None else os.fsencode(path)
            after = handle.file.attributes
            if after is not before and after.file_id != before.file_id:
                self._pages.published(name, before.file_id, after.file_id)
            self._links.changed(after.inode)
            # The commit has set the time of modification anew.
            if path is not None and (handle.file.merged or (
                    handle.is_direct and self._told.is_told(after.inode))):
                self._after_flush(name, handle.file)
        return 0

    def _require_locks(self, handle: Handle) -> None:
        """A program that had a lock must not go on when others may have it: its handle fails from then on. Raises
        LocksLost."""
        if handle.lock_generation is None:
            return
        handle.raise_failure()
        try:
            self._session.require(handle.lock_generation)
        except LocksLost as error:
            handle.file.give_up(error)
            handle.failure = error
            raise

    def _after_flush(self, path: bytes, file: OpenFile) -> None:
        """Have the kernel ask again: what it knows may be older than what was published."""
        if file.merged:
            file.merged = False
            self._pages.forget(path)
        self._drop_attributes(path)

    def _take_newest(self, path: Path | None, info: FileInfo) -> None:
        """Have all programs that have the file open here see what was published before on any mount."""
        handle = self._files.handle(info.fh)
        name = handle.path if path is None else os.fsencode(path)
        self._metadata.forget_all()
        try:
            is_other = handle.file.renew()
        except NoSuchFile:
            return  # another mount has removed it: nobody can change it any more
        has_pages_of_it = self._pages.reading(name, handle.file.attributes.file_id)
        if is_other or not has_pages_of_it:
            self._drop_attributes(name)  # and the pages with them
