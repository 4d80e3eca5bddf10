"""Renaming in the tree, with all the cases of rename(2) and renameat2(2)."""

from speedwell.fs import paths
from speedwell.fs.errors import (
    AlreadyExists,
    DeviceBusy,
    DirectoryNotEmpty,
    InvalidArgument,
    IsADirectory,
    NotADirectory,
)
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.namespace_records import DIRECTORY, ROOT_INODE, Inode
from speedwell.fs.nameserver.namespace.quota_changes import QuotaChanges
from speedwell.fs.nameserver.namespace.trash import Trash
from speedwell.fs.nameserver.namespace.tree import Place
from speedwell.fs.store import Batch


class Renaming(QuotaChanges, Trash):
    """Every rename is one write batch."""

    def rename(self, source: bytes, destination: bytes, *, no_replace: bool, now_ns: int,
               exchange: bool = False, session: int = 0) -> Inode | None:
        """As rename(2): what is at the destination is replaced in the same step, or with `exchange` gets the
        source's name. Returns the file that lost the destination's name, if any; with a `session` it is held
        for that (`Namespace.remove_file`).

        Raises NoSuchFile, NotADirectory, IsADirectory, DirectoryNotEmpty, AlreadyExists (no_replace),
        InvalidArgument (a directory into itself), DeviceBusy (the root), QuotaExceeded, CrossesQuota.
        """
        old, new = self._find(source), self._find(destination)
        moved = self._existing(old)
        if ROOT_INODE in (moved, new.inode):
            raise DeviceBusy("the root directory cannot be renamed or replaced")
        if no_replace and new.inode is not None:
            raise AlreadyExists(f"{paths.display(destination)} exists")
        if exchange:
            self._exchange(old, new, now_ns)
            return None
        if old.kind == DIRECTORY and moved in self._way_up(new.parent):
            raise InvalidArgument(f"{paths.display(destination)} is inside the directory {paths.display(source)} "
                                  "that is being renamed")
        if new.inode is not None and new.kind == DIRECTORY and new.inode in self._way_up(old.parent):
            raise DirectoryNotEmpty(f"{paths.display(destination)} is not empty")
        if moved == new.inode:
            return None
        self._check_replaceable(old, new)
        batch = Batch()
        superblock = self._superblock(old.parent)
        replaced = None if new.inode is None else self._inode(new.inode)
        if replaced is not None and replaced.is_directory:
            self._discard(batch, superblock, replaced, now_ns)
            replaced.link_count = 0
        elif replaced is not None:
            self._unlink(batch, superblock, replaced, now_ns, session)
        inode = self._inode(moved)
        inode.ctime_ns = now_ns
        self._put_at(inode, new)
        self.requota_renamed(batch, inode, old, new)
        self._put_inode(batch, inode)
        batch.delete(records.dentry_key(old.parent, old.name))
        batch.put(records.dentry_key(new.parent, new.name), records.encode_dentry(inode.kind, moved))
        self._touch_renamed_parents(batch, old, new, now_ns)
        self._write(batch, superblock)
        return replaced

    def _exchange(self, old: Place, new: Place, now_ns: int) -> None:
        first, second = self._inode(self._existing(old)), self._inode(self._existing(new))
        if (first.is_directory and first.number in self._way_up(new.parent)) or (
                second.is_directory and second.number in self._way_up(old.parent)):
            raise InvalidArgument(f"one of {paths.display(old.path)} and {paths.display(new.path)} "
                                  "is inside the other")
        if first.number == second.number:
            return
        self.refuse_exchange(old, new)
        batch = Batch()
        for inode, place in ((first, new), (second, old)):
            inode.ctime_ns = now_ns
            self._put_at(inode, place)
            self._put_inode(batch, inode)
            batch.put(records.dentry_key(place.parent, place.name),
                      records.encode_dentry(inode.kind, inode.number))
        gained = int(first.is_directory) - int(second.is_directory)
        if old.parent == new.parent:
            self._touch_parent(batch, old.parent, now_ns)
        else:
            self._touch_parent(batch, old.parent, now_ns, link_change=-gained)
            self._touch_parent(batch, new.parent, now_ns, link_change=gained)
        self._write(batch)

    def _check_replaceable(self, old: Place, new: Place) -> None:
        if new.inode is None:
            return
        if old.kind == DIRECTORY and new.kind != DIRECTORY:
            raise NotADirectory(f"{paths.display(new.path)} is not a directory, "
                                f"{paths.display(old.path)} is")
        if old.kind != DIRECTORY and new.kind == DIRECTORY:
            raise IsADirectory(f"{paths.display(new.path)} is a directory, {paths.display(old.path)} is not")
        if new.kind == DIRECTORY:
            self._check_empty(new.path, new.inode)

    def _touch_renamed_parents(self, batch: Batch, old: Place, new: Place, now_ns: int) -> None:
        moved_links = int(old.kind == DIRECTORY)
        gained_links = moved_links - int(new.kind == DIRECTORY)
        if old.parent == new.parent:
            self._touch_parent(batch, old.parent, now_ns, link_change=gained_links - moved_links)
        else:
            self._touch_parent(batch, old.parent, now_ns, link_change=-moved_links)
            self._touch_parent(batch, new.parent, now_ns, link_change=gained_links)
