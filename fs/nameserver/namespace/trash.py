"""What was removed and can be brought back for a while.

A directory may have a policy, for itself and everything below it that has none of its own: how long a removed file
or directory is kept. Removing then takes the name away as ever; the inode stays, without a name, with an entry in
the trash in the same batch. The content stays on its dataservers, and replicas that are lost are made again. When
its time is over the entry goes like any other removed file.

What rename(2) replaces is not kept, nor is a file that has another name still.
"""

from dataclasses import dataclass

from speedwell.fs import paths
from speedwell.fs.errors import AlreadyExists, NoSuchFile, NotADirectory
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.deletions import Deletions
from speedwell.fs.nameserver.namespace.namespace_records import ROOT_INODE, Inode, Superblock
from speedwell.fs.nameserver.namespace.quota_accounting import QuotaAccounting
from speedwell.fs.nameserver.namespace.superblocks import Superblocks
from speedwell.fs.nameserver.namespace.tree import Place, Tree
from speedwell.fs.proto.speedwell_pb2 import TrashPolicy, TrashRecord
from speedwell.fs.store import Batch, Store, end_of_prefix

ENTRIES_PER_STEP = 500
"""Requests wait meanwhile: some milliseconds."""


@dataclass(frozen=True, slots=True)
class Removed:
    """An entry of the trash. `due_ns` is the namespace's age at which it goes for good."""

    inode: Inode
    due_ns: int
    removed_ns: int
    path: bytes


def refuse_in_trash(inode: Inode) -> None:
    """Raises NoSuchFile for a file that comes back as it was removed."""
    if not inode.parent:
        raise NoSuchFile(f"inode {inode.number} was removed")


class Trash:
    """Times are those of the nameserver's clock, passed in; how long something is kept goes by the age."""

    def __init__(self, store: Store, tree: Tree, superblocks: Superblocks, accounting: QuotaAccounting,
                 deletions: Deletions) -> None:
        self._store = store
        self._tree = tree
        self._superblocks = superblocks
        self._accounting = accounting
        self._deletions = deletions
        self.load_policies()

    # -------------------------------------------------------------- policies

    def set_policy(self, path: bytes, keep_ns: int) -> None:
        """Keep what is removed below a directory for that long, 0: not at all. Raises NoSuchFile, NotADirectory."""
        directory = self._tree.lookup(path)
        if not directory.is_directory:
            raise NotADirectory(f"{paths.display(path)} is not a directory")
        batch = Batch()
        if keep_ns or (directory.number != ROOT_INODE and self._keep_ns(directory.parent)):
            batch.put(records.trash_policy_key(directory.number),
                      TrashPolicy(path=path, keep_ns=keep_ns).SerializeToString())
        else:
            batch.delete(records.trash_policy_key(directory.number))
        self._store.write(batch)
        self.load_policies()

    def load_policies(self) -> None:
        """Read them from the store. They have the paths that their directories had when they were set."""
        stop = end_of_prefix(records.TRASH_POLICY_PREFIX)
        self.policies = {
            records.trash_policy_directory(key): TrashPolicy.FromString(value)
            for key, value in self._store.iterate(records.TRASH_POLICY_PREFIX, stop)}

    def _keep_ns(self, directory: int) -> int:
        """How long what is removed there is kept."""
        for number in self._tree.way_up(directory):
            policy = self.policies.get(number)
            if policy is not None:
                return policy.keep_ns
        return 0

    # -------------------------------------------------------------- removing

    def unlink(self, batch: Batch, superblock: Superblock, inode: Inode, now_ns: int, session: int = 0,
               place: Place | None = None) -> None:
        """Take one name away from a file. One without a name goes, unless `session` still holds it; into the trash
        if what is removed at `place` is kept."""
        inode.link_count -= 1
        inode.ctime_ns = now_ns
        kept = None if place is None or inode.link_count else self.kept(place, now_ns)
        if inode.link_count:
            batch.put(inode.key, inode.encode())
        elif session:
            batch.put(inode.key, inode.encode())
            batch.put(records.orphan_key(session, inode.number), kept.SerializeToString() if kept else b"")
        else:
            self.let_go(batch, superblock, inode, now_ns, kept)

    def let_go(self, batch: Batch, superblock: Superblock, inode: Inode, now_ns: int,
               kept: TrashRecord | None = None) -> None:
        """Put an inode without a name into the trash; if it is not `kept`, drop it."""
        self._uncount(batch, superblock, inode)
        if kept is None:
            self._drop(batch, inode, now_ns)
            return
        inode.quota, inode.parent, inode.link_count, inode.ctime_ns = 0, 0, 0, now_ns
        batch.put(inode.key, inode.encode())
        due_ns = self._deletions.due_ns(batch, now_ns, kept.keep_ns)
        batch.put(records.trash_key(due_ns, inode.number), kept.SerializeToString())

    def kept(self, place: Place, now_ns: int) -> TrashRecord | None:
        """What is noted of something that is removed there; None if it is not kept."""
        keep_ns = self._keep_ns(place.parent) if self.policies else 0
        return None if not keep_ns else TrashRecord(path=self._tree.full_path(place.path), removed_ns=now_ns,
                                                    keep_ns=keep_ns)

    def _uncount(self, batch: Batch, superblock: Superblock, inode: Inode) -> None:
        """It is none of the namespace's files and directories any more."""
        if inode.is_directory:
            superblock.directories -= 1
        else:
            superblock.files -= 1
        if inode.quota:
            self._accounting.charge(batch, inode.quota, -inode.size_bytes, -1)
            if inode.quota == inode.number:
                self._accounting.directory_removed(batch, inode.number)
        if inode.number in self.policies:
            batch.delete(records.trash_policy_key(inode.number))

    def _drop(self, batch: Batch, inode: Inode, now_ns: int) -> None:
        """With its content, which is queued for deletion."""
        batch.delete(inode.key)
        if inode.content is not None:
            self._deletions.later(batch, inode.content, now_ns)

    # -------------------------------------------------------------- what is there

    def entries_after(self, due_ns: int, inode: int, limit: int) -> list[Removed]:
        """Up to `limit` entries after that one, those that go first before the others."""
        found: list[Removed] = []
        start = records.trash_key(due_ns, inode) + b"\0"
        for key, value in self._store.iterate(start, end_of_prefix(records.TRASH_PREFIX)):
            if len(found) == limit:
                break
            due_ns, number = records.trash_place(key)
            record = TrashRecord.FromString(value)
            found.append(Removed(self._tree.existing(number), due_ns, record.removed_ns, record.path))
        return found

    def restore(self, due_ns: int, number: int, path: bytes, *, now_ns: int) -> Inode:
        """Give an entry of the trash the name `path`.

        Raises NoSuchFile (the entry is not there any more, or the directory is not), AlreadyExists, QuotaExceeded.
        """
        key = records.trash_key(due_ns, number)
        if self._store.get(key) is None:
            raise NoSuchFile(f"inode {number} is not in the trash any more")
        place = self._tree.find(path)
        if place.inode is not None:
            raise AlreadyExists(f"{paths.display(path)} exists")
        inode = self._tree.existing(number)
        inode.link_count = 2 if inode.is_directory else 1
        inode.ctime_ns = now_ns
        batch = Batch()
        batch.delete(key)
        self._tree.add(place, inode, self._superblocks.of(place.parent), now_ns, batch)
        return inode

    def purge(self, entries: list[tuple[int, int]], *, now_ns: int) -> int:
        """Let go for good of the entries (`due_ns`, inode); those that are not there are passed over."""
        batch = Batch()
        purged = 0
        for due_ns, number in entries:
            key = records.trash_key(due_ns, number)
            if self._store.get(key) is not None and key not in batch.changes:
                batch.delete(key)
                self._drop(batch, self._tree.existing(number), now_ns)
                purged += 1
        if purged:
            self._store.write(batch)
        return purged

    def expire(self, now_ns: int, limit: int = ENTRIES_PER_STEP) -> int:
        """Let go of entries whose time is over, so many at once; returns how many."""
        due = []
        stop = records.trash_key(self._deletions.age_ns(now_ns) + 1, 0)
        for key, _ in self._store.iterate(records.TRASH_PREFIX, stop):
            due.append(records.trash_place(key))
            if len(due) == limit:
                break
        return self.purge(due, now_ns=now_ns)
