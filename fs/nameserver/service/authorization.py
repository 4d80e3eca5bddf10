"""What the holder of a certificate with a scope may ask of the namespace. The kernel of an honest mount has checked
the same before; nothing here relies on that."""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import Any

from speedwell.fs import paths
from speedwell.fs.errors import InvalidName, NoSuchFile, NotADirectory, NotAuthorised, StorageFailed
from speedwell.fs.file_status import CAPABILITIES, SET_ID_BITS
from speedwell.fs.identity.bundle import Peer
from speedwell.fs.identity.scope import NOBODY, Scope
from speedwell.fs.nameserver.namespace import acls
from speedwell.fs.nameserver.namespace.namespace_records import REGULAR, ROOT_INODE, Inode
from speedwell.fs.nameserver.namespace.trash import refuse_in_trash
from speedwell.fs.nameserver.namespace.tree import Tree
from speedwell.fs.nameserver.service.access import READ, SEARCH, WRITE, may
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.tokens import READ as READ_RIGHT
from speedwell.fs.tokens import WRITE as WRITE_RIGHT

_USERS_ATTRIBUTES, _ROOTS_ATTRIBUTES = b"user.", b"trusted."
MOST_SEARCHED = 16384
Searched = dict[int, tuple[bytes, int]]
"""Directories that may be searched as long as their records are these, and their parents."""

SETGID_PROGRAM = stat.S_ISGID | stat.S_IXGRP

_DEVICES = (pb.CHARACTER_DEVICE, pb.BLOCK_DEVICE)


class Authorization:
    """Of one sender; the caller holds the nameserver's guard. All methods raise NotAuthorised, always with the same
    words, and what the namespace raises for what the sender may know."""

    def __init__(self, tree: Tree, sender: Peer, scope: Scope, searched: Searched) -> None:
        """`searched` is kept for the next one with that scope."""
        self._tree = tree
        self._searched = searched
        self._sender = sender
        self._scope = scope

    def check(self, method: str, request: Any) -> None:
        """Before the request is carried out; its root becomes nobody."""
        check = _CHECKS.get(method)
        if check is None:
            raise self._refused()
        check(self, request)

    def rights(self, number: int) -> int:
        """Those of a token for the content of a file."""
        try:
            inode = self._tree.inode(number)
        except NoSuchFile:
            return 0
        return ((READ_RIGHT if self._owns(inode) or self._may(inode, READ) else 0)
                | (WRITE_RIGHT if self._may_change(inode) and not self._lends_more(inode) else 0))

    def visible(self, name: bytes, number: int) -> bool:
        """Whether an extended attribute is shown."""
        if name.startswith(_USERS_ATTRIBUTES):
            return bool(self.rights(number) & READ_RIGHT)
        return self._scope.root or not name.startswith(_ROOTS_ATTRIBUTES)

    # ------------------------------------------------------------------ what a request needs

    def look(self, request: pb.LookupRequest) -> None:
        self._found(request.path or paths.of_inode(request.inode))

    def list(self, request: pb.ListRequest) -> None:
        directory = self._found(request.path)
        self._require(self._may(directory, READ))
        if directory.is_directory and not self._may(directory, SEARCH):
            self._require(request.columns)
            request.statuses = False    # names alone

    def see(self, request: Any) -> None:
        self._found(request.path)

    def make(self, request: Any) -> None:
        parent, found = self._place(request.path)
        self._claim(request, parent)
        if found is None:
            self._require(self._may(parent, WRITE))

    def make_special(self, request: pb.MakeSpecialRequest) -> None:
        self._require(self._scope.root or request.type not in _DEVICES)
        self.make(request)

    def link(self, request: pb.LinkRequest) -> None:
        source = self._found(request.source)
        is_plain = source.kind == REGULAR and not source.mode & stat.S_ISUID and source.mode & SETGID_PROGRAM != (
            SETGID_PROGRAM)     # as fs.protected_hardlinks has it
        self._require(self._owns(source) or (is_plain and self._may(source, READ | WRITE)))
        self._require(self._may(self._place(request.destination)[0], WRITE))

    def remove(self, request: pb.RemoveRequest) -> None:
        self._require_own_user(request)
        self._require_removable(*self._place(request.path))

    def rename(self, request: pb.RenameRequest) -> None:
        self._require_own_user(request)
        old, moved = self._place(request.source)
        new, replaced = self._place(request.destination)
        self._require_removable(old, moved)
        self._require_removable(new, replaced)
        for inode in (moved, replaced if request.exchange else None):
            if inode is not None and inode.is_directory and old.number != new.number:
                self._require(self._may(inode, WRITE))      # its `..` changes

    def set_attributes(self, request: pb.SetAttributesRequest) -> None:
        inode, has = self._found(request.path), request.HasField
        owns = self._owns(inode)
        if has("uid"):
            self._require(self._scope.root or (owns and request.uid == inode.uid))
        if has("gid"):
            self._require(self._scope.root or (owns and (request.gid == inode.gid
                                                         or self._scope.has_group(request.gid))))
        if has("mode"):
            only_clears = request.mode | inode.mode & SET_ID_BITS == inode.mode     # as who writes to a file does
            self._require(owns or (only_clears and self._may(inode, WRITE)))
            group = request.gid if has("gid") else inode.gid
            if not (self._scope.root or self._scope.has_group(group)):
                request.mode &= ~stat.S_ISGID
        if has("atime_ns") or has("mtime_ns"):
            self._require(owns)
        if request.atime_now or request.mtime_now:
            self._require(owns or self._may(inode, WRITE))

    def change_extended_attribute(self, path: bytes, name: bytes) -> Inode:
        inode = self._found(path)
        if name.startswith(_USERS_ATTRIBUTES):
            self._require(inode.is_directory or inode.kind == REGULAR)      # xattr(7): all may write to a link
            sticky = inode.is_directory and inode.mode & stat.S_ISVTX
            self._require(self._owns(inode) or (self._may(inode, WRITE) and not sticky))
        else:
            self._require(self._scope.root or (name in acls.NAMES and self._owns(inode)))
        return inode

    def set_extended_attribute(self, request: pb.SetExtendedAttributeRequest) -> None:
        inode = self.change_extended_attribute(request.path, request.extended_attribute.name)
        if not (self._scope.root or self._scope.has_group(inode.gid)):
            request.clear_setgid = True

    def remove_extended_attribute(self, request: pb.RemoveExtendedAttributeRequest) -> None:
        if request.name == CAPABILITIES:    # every write takes them
            self.write(request)
        else:
            self.change_extended_attribute(request.path, request.name)

    def write(self, request: Any) -> None:
        self._require(self._may_change(self._found(request.path)))

    def commit(self, request: pb.CommitRequest) -> None:
        self._require(self._may_change(self._found(paths.of_inode(request.inode))))

    def lock(self, request: pb.LockRequest) -> None:
        if request.action in (pb.LockRequest.ACQUIRE, pb.LockRequest.TEST):
            try:
                self._found(paths.of_inode(request.inode))
            except NoSuchFile:
                return      # it can be locked by who still has it open
            self._require(bool(self.rights(request.inode)))

    # ------------------------------------------------------------------ private

    def _refused(self) -> NotAuthorised:
        return NotAuthorised(f"the {self._sender} may not do that: its certificate is for {self._scope.described()}, "
                             "with what these may do there")

    def _require(self, allowed: bool) -> None:
        if not allowed:
            raise self._refused()

    def _require_own_user(self, request: pb.RemoveRequest | pb.RenameRequest) -> None:
        """The audit log is to name nobody else."""
        self._require(self._scope.root or not request.uid or self._scope.has_user(request.uid))

    def _may(self, inode: Inode, wanted: int) -> bool:
        access = inode.extended_attributes.get(acls.ACCESS)
        return may(inode.mode, acls.decode(access) if access else (), inode.uid, inode.gid, self._scope, wanted)

    def _owns(self, inode: Inode) -> bool:
        return self._scope.root or self._scope.has_user(inode.uid)

    def _may_change(self, inode: Inode) -> bool:
        """Its content. An owner could change the mode, and one who made it read-only writes on."""
        return self._owns(inode) or self._may(inode, WRITE)

    def _lends_more(self, inode: Inode) -> bool:
        """Whether who runs it gets rights that the sender has not. An honest mount takes them away first."""
        setgid = inode.mode & SETGID_PROGRAM == SETGID_PROGRAM
        return not self._scope.root and (
            bool(inode.mode & stat.S_ISUID and not self._scope.has_user(inode.uid))
            or (setgid and not self._scope.has_group(inode.gid)) or CAPABILITIES in inode.extended_attributes)

    def _claim(self, request: Any, parent: Inode) -> None:
        """Whose it will be."""
        if self._scope.root:
            return
        request.uid, request.gid = request.uid or NOBODY, request.gid or NOBODY
        inherits = bool(parent.mode & stat.S_ISGID)
        self._require(self._scope.has_user(request.uid) and (inherits or self._scope.has_group(request.gid)))
        if hasattr(request, "mode") and not self._scope.has_group(parent.gid if inherits else request.gid):
            request.mode &= ~stat.S_ISGID

    def _require_removable(self, parent: Inode, inode: Inode | None) -> None:
        self._require(self._may(parent, WRITE))
        if inode is not None and parent.mode & stat.S_ISVTX:
            self._require(self._owns(inode) or self._owns(parent))

    def _reach(self, number: int) -> None:
        """A directory that can be searched, as all above it up to the sub-tree's."""
        top = ROOT_INODE if self._scope.subtree == paths.ROOT else self._top()
        while True:
            try:
                record = self._tree.record(number)
            except StorageFailed:
                raise self._refused() from None
            known = self._searched.get(number)
            if known is None or known[0] != record:
                directory = Inode.decode(number, record)
                self._require(self._may(directory, SEARCH))
                if len(self._searched) >= MOST_SEARCHED:
                    self._searched.clear()
                known = self._searched[number] = record, directory.parent
            if number == top:
                return
            self._require(number not in (ROOT_INODE, 0))
            number = known[1]

    def _top(self) -> int:
        try:
            return self._tree.lookup(self._scope.subtree).number
        except (NoSuchFile, NotADirectory):
            raise self._refused() from None

    def _found(self, path: bytes) -> Inode:
        self._require(bool(path))
        if not paths.is_inode(path):
            return self._place(path, known=True)[1] or self._tree.lookup(path)
        inode = self._tree.lookup(path)
        if inode.number == (self._top() if self._scope.subtree != paths.ROOT else ROOT_INODE):
            return inode
        refuse_in_trash(inode)
        if inode.link_count or self._scope.subtree != paths.ROOT or self._is_there(inode.parent):
            self._reach(inode.parent)
        return inode

    def _is_there(self, directory: int) -> bool:
        try:
            return self._tree.inode(directory).link_count > 0
        except NoSuchFile:
            return False

    def _place(self, path: bytes, *, known: bool = False) -> tuple[Inode, Inode | None]:
        """The directory that holds a name, and what has that name. With `known` also of the sub-tree's own directory,
        which has no name for the sender."""
        components = paths.components(path)
        if known and components == paths.components(self._scope.subtree) and paths.inode_number(path) is None:
            top = self._tree.lookup(path)
            return top, top
        self._require(path != paths.ROOT or not known)
        if paths.is_inode(path) or path == paths.ROOT:
            raise InvalidName(f"{paths.display(path)} has no name")
        parent = self._directory(paths.parent(path))
        try:
            return parent, self._tree.lookup(path)
        except NoSuchFile:
            return parent, None

    def _directory(self, path: bytes) -> Inode:
        """Nothing is looked for where the sender may not search: a refusal takes as long whatever is there."""
        if path == self._scope.subtree:
            self._top()
        elif not paths.is_inode(path):
            self._require(paths.inode_number(path) is not None or paths.is_within(path, self._scope.subtree))
            self._directory(paths.parent(path))
        directory = self._tree.lookup(path)
        self._reach(directory.number if directory.is_directory else directory.parent)
        return directory


FREE = frozenset(("Statistics", "RenewSession", "EndSession", "Release", "Sync", "ProofKey"))
"""Requests that say nothing of names and files."""

_CHECKS: dict[str, Callable[[Authorization, Any], None]] = {
    "Lookup": Authorization.look,
    "List": Authorization.list,
    "ListExtendedAttributes": Authorization.see,
    "Quotas": Authorization.see,
    "Create": Authorization.make,
    "MakeDirectory": Authorization.make,
    "MakeSymbolicLink": Authorization.make,
    "MakeSpecial": Authorization.make_special,
    "Link": Authorization.link,
    "Remove": Authorization.remove,
    "Rename": Authorization.rename,
    "SetAttributes": Authorization.set_attributes,
    "SetExtendedAttribute": Authorization.set_extended_attribute,
    "RemoveExtendedAttribute": Authorization.remove_extended_attribute,
    "Truncate": Authorization.write,
    "Commit": Authorization.commit,
    "Lock": Authorization.lock,
}
"""A request that is neither here nor FREE is for who has a certificate without a scope."""
