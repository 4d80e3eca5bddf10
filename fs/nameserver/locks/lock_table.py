"""Locks that programs on all mounts hold on files: byte ranges (fcntl(2)) and whole files (flock(2)).

Every change is written to the store before it is answered, so locks outlive the nameserver's process. A lock
belongs to an owner (a number that the kernel of the mount's machine gives) of a session.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from speedwell.fs.errors import TooManyLocks
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.proto.speedwell_pb2 import LockRecord, LocksRecord
from speedwell.fs.store import Batch, Store, end_of_prefix

END_OF_FILE = 2**63 - 1
"""`last` of a lock that reaches to wherever the file ends."""

MAX_LOCKS_PER_FILE = 10000
FORGET_WAITER_SECONDS = 1.0
"""A waiter asks again and again; one that has not asked for so long waits no more."""

Owner = tuple[int, int]
"""Session and the owner's number within it."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock on the bytes `first` to `last`, both included. `whole` ones are those of flock(2)."""

    session: int
    owner: int
    first: int
    last: int
    exclusive: bool
    whole: bool = False
    process: int = 0
    generation: int = 0
    """Of the session."""

    @property
    def held_by(self) -> Owner:
        return self.session, self.owner

    def conflicts(self, other: "Lock") -> bool:
        return (self.whole == other.whole and self.held_by != other.held_by
                and (self.exclusive or other.exclusive)
                and self.first <= other.last and other.first <= self.last)


class LockTable:
    """Locks by inode. One thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._locks: dict[int, list[Lock]] = {}
        self._waiting: dict[Owner, tuple[int, Lock, float]] = {}
        prefix = records.LOCKS_PREFIX
        for key, value in store.iterate(prefix, end_of_prefix(prefix)):
            self._locks[records.locks_inode(key)] = [
                Lock(each.session, each.owner, each.first, each.last, each.exclusive, each.whole, each.process,
                     each.generation)
                for each in LocksRecord.FromString(value).locks]

    def sessions(self) -> dict[int, int]:
        """Those that hold locks, with their generations."""
        return {lock.session: lock.generation for locks in self._locks.values() for lock in locks}

    def conflict(self, inode: int, wanted: Lock) -> Lock | None:
        """A lock that stands in the way of `wanted`."""
        return next((lock for lock in self._locks.get(inode, ()) if lock.conflicts(wanted)), None)

    def acquire(self, inode: int, wanted: Lock) -> Lock | None:
        """Take the lock in place of what its owner has in that range, or return one that is in the way.

        Raises TooManyLocks.
        """
        held = self.conflict(inode, wanted)
        if held is None:
            self._put(inode, [*self._without(inode, wanted), wanted])
            self._waiting.pop(wanted.held_by, None)
        return held

    def release(self, inode: int, freed: Lock) -> bool:
        """Give up what the owner of `freed` holds in its range; whether that was anything."""
        before = self._locks.get(inode)
        if before is None:
            return False
        after = self._without(inode, freed)
        if after == before:
            return False
        self._put(inode, after)
        return True

    def release_session(self, session: int) -> bool:
        """Give up everything a session holds; whether that was anything."""
        for owner in [owner for owner in self._waiting if owner[0] == session]:
            del self._waiting[owner]
        inodes = [inode for inode, locks in self._locks.items() if any(lock.session == session for lock in locks)]
        for inode in inodes:
            self._put(inode, [lock for lock in self._locks[inode] if lock.session != session])
        return bool(inodes)

    # -------------------------------------------------------------- waiting

    def wait(self, inode: int, wanted: Lock, now_seconds: float) -> bool:
        """Note that the owner waits for `wanted`; False if that would be a deadlock: whoever is in the way
        waits, directly or not, for a lock of this owner."""
        if not wanted.whole and self._leads_back(inode, wanted, now_seconds):
            self._waiting.pop(wanted.held_by, None)
            return False
        self._waiting[wanted.held_by] = (inode, wanted, now_seconds)
        return True

    def stop_waiting(self, owner: Owner) -> None:
        self._waiting.pop(owner, None)

    def _leads_back(self, inode: int, wanted: Lock, now_seconds: float) -> bool:
        seen: set[Owner] = set()
        to_look_at = [(inode, wanted)]
        while to_look_at:
            place, lock = to_look_at.pop()
            for held in self._locks.get(place, ()):
                if not held.conflicts(lock) or held.held_by in seen:
                    continue
                seen.add(held.held_by)
                waits = self._waiting.get(held.held_by)
                if waits is None or now_seconds - waits[2] > FORGET_WAITER_SECONDS:
                    continue
                if any(mine.held_by == wanted.held_by and mine.conflicts(waits[1])
                       for mine in self._locks.get(waits[0], ())):
                    return True
                to_look_at.append((waits[0], waits[1]))
        return False

    # -------------------------------------------------------------- private

    def _without(self, inode: int, cut: Lock) -> list[Lock]:
        """The locks of a file when the owner of `cut` has none in its range."""
        kept = []
        for lock in self._locks.get(inode, ()):
            if (lock.held_by != cut.held_by or lock.whole != cut.whole
                    or lock.last < cut.first or cut.last < lock.first):
                kept.append(lock)
                continue
            if lock.first < cut.first:
                kept.append(replace(lock, last=cut.first - 1))
            if lock.last > cut.last:
                kept.append(replace(lock, first=cut.last + 1))
        return kept

    def _put(self, inode: int, locks: Iterable[Lock]) -> None:
        remaining = list(locks)
        if len(remaining) > MAX_LOCKS_PER_FILE:
            raise TooManyLocks(f"inode {inode} has {MAX_LOCKS_PER_FILE} locks already")
        batch = Batch()
        if remaining:
            batch.put(records.locks_key(inode), LocksRecord(locks=[LockRecord(
                session=lock.session, owner=lock.owner, first=lock.first, last=lock.last,
                exclusive=lock.exclusive, whole=lock.whole, process=lock.process, generation=lock.generation)
                for lock in remaining]).SerializeToString())
        else:
            batch.delete(records.locks_key(inode))
        self._store.write(batch)
        if remaining:
            self._locks[inode] = remaining
        else:
            self._locks.pop(inode, None)
