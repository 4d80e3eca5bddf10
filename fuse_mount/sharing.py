"""Giving other mounts what was written here, and taking over what they wrote."""

from fs.errors import LocksLost, NoSuchFile, ReadFailed
from fs.file_status import SET_ID_BITS
from fuse_mount.open_file import Handle, OpenFile
from fuse_mount.shared import SharedState

RENEWAL_SECONDS = 20.0


class Sharing(SharedState):
    """Both directions, with what the kernel has to be told about it."""

    def _flush(self, handle: Handle, *, whole_file: bool = False) -> None:
        """Publish what was written through the handle, or with `whole_file` through any."""
        self._require_locks(handle)
        if handle.wrote or (whole_file and handle.file.dirty):
            handle.raise_failure()
            before = handle.file.attributes
            handle.file.flush()
            after = handle.file.attributes
            if after is not before and after.file_id != before.file_id:
                self._nodes.published(after.inode, before.file_id, after.file_id)
            self._after_flush(handle.file)
            if handle.wrote_under_mode and after.mode & SET_ID_BITS:   # which another mount has set
                handle.wrote_under_mode = False
                self._note_mode(after)
                self._written(after.inode)

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

    def _after_flush(self, file: OpenFile) -> None:
        """Have the kernel ask again: a commit sets the times anew, and what it knows may be older than what was
        published."""
        if file.merged:
            file.merged = False
            self._forget_pages(file.inode)
            self._kernel.drop_pages(file.inode)
        else:
            self._kernel.drop_attributes(file.inode)

    def _take_newest(self, handle: Handle) -> None:
        """Have all programs that have the file open here see what was published before on any mount."""
        file = handle.file
        self._metadata.forget_all()
        self._kernel.drop_attributes(file.inode)
        with file.renewal:
            try:
                if file.renew():
                    self._forget_pages(file.inode)
            except NoSuchFile:
                return  # another mount has removed it: nobody can change it any more
            if not self._has_pages_of(file.inode, file.attributes.file_id):
                raise ReadFailed(f"the kernel has kept old pages of inode {file.inode} for {RENEWAL_SECONDS:g} s")

    def _has_pages_of(self, inode: int, file_id: str) -> bool:
        """Have the kernel keep no pages but of that content. Only who has the file's `renewal` may believe it: until
        the old ones are dropped, others would read them."""
        if self._nodes.reads(inode, file_id) or self._kernel.drop_pages(inode, RENEWAL_SECONDS):
            return True
        self._forget_pages(inode)
        return False
