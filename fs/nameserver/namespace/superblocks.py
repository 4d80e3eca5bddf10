"""The counters of the namespace, a record for each block of inodes: what was given out, and how much there is."""

from speedwell.fs import slots
from speedwell.fs.errors import StorageFailed
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.namespace_records import ROOT_INODE, Superblock
from speedwell.fs.store import Batch, Store, end_of_prefix


class Superblocks:
    """Read anew each time: after a failed write the store may hold more than was answered."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, number: int) -> Superblock:
        """That of the block of an inode."""
        block = slots.block_of(number)
        value = self._store.get(records.superblock_key(block))
        if value is not None:
            return Superblock.decode(value, block)
        if not block:
            raise StorageFailed("the record with the namespace's counters is missing")
        return Superblock(1, 0, 0, block)

    @property
    def file_count(self) -> int:
        return sum(superblock.files for superblock in self._all())

    @property
    def directory_count(self) -> int:
        """Including the root."""
        return sum(superblock.directories for superblock in self._all())

    @property
    def next_inode(self) -> int:
        """The number that the next file in slot 0 gets: all given out so far are below."""
        return self.of(ROOT_INODE).next_inode

    def was_given(self, number: int) -> bool:
        """Whether a file may have that number. Asks another owner's record, which changes with each file made there,
        only where what is known of it says no."""
        key = records.superblock_key(slots.block_of(number))
        known = next(iter(self._store.iterate(key, key + b"\0")), None)
        local = number & slots.LOCAL_MASK
        return (known is not None and local < Superblock.decode(known[1]).next_inode) or (
            number < self.next_beside(number))

    def next_beside(self, number: int) -> int:
        """The number that the next file in the same slot gets."""
        return slots.beside(number, self.of(number).next_inode)

    def skip_inodes(self, next_inode: int) -> None:
        """Give out numbers from `next_inode` on only, in its block."""
        superblock = self.of(next_inode)
        superblock.next_inode = max(superblock.next_inode, next_inode & slots.LOCAL_MASK)
        batch = Batch()
        batch.put(records.superblock_key(superblock.block), superblock.encode())
        self._store.write(batch)

    def _all(self) -> list[Superblock]:
        stop = end_of_prefix(records.SUPERBLOCK_KEY)
        return [Superblock.decode(value) for _, value in self._store.iterate(records.SUPERBLOCK_KEY, stop)]
