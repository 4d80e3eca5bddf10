"""Locks of fcntl(2) and flock(2), held at the nameserver, so that they hold between mounts.

Who gets a lock sees what was written by whoever had it before, on any mount, also through descriptors that are open
for long: what is written is published before a lock is given up, and a lock is granted with the newest version.
"""

import fcntl
import os
from contextlib import suppress
from functools import partial
from typing import Any

from speedwell.fs.client.change.open_file import Handle
from speedwell.fs.errors import Locked, LocksLost, SpeedwellError, TooManyLocks
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fuse_mount.binding import MAX_WAITERS
from speedwell.fuse_mount.name_operations import NameOperations

END_OF_FILE = 2**63 - 1


class LockOperations(NameOperations):
    """What libfuse calls for locks; `info.lock_owner` tells the programs of this machine apart, `lock` is fcntl(2)'s
    `struct flock`."""

    def getlk(self, info: Any, lock: Any) -> Any:
        """`lock`, with a lock that would be in the way, or F_UNLCK."""
        request = self._wanted(info, lock)
        request.action, request.session = pb.LockRequest.TEST, self._session.number
        reply = self._session.lock(request)
        if reply.granted:
            lock.l_type = fcntl.F_UNLCK
            return lock
        found = reply.conflict
        lock.l_type = fcntl.F_WRLCK if found.exclusive else fcntl.F_RDLCK
        lock.l_whence, lock.l_pid = os.SEEK_SET, found.process
        lock.l_start = found.first
        lock.l_len = 0 if found.last == END_OF_FILE else found.last - found.first + 1
        return lock

    def setlk(self, info: Any, lock: Any, waits: bool) -> None:
        request = self._wanted(info, lock)
        if lock.l_type == fcntl.F_UNLCK:
            self._give_up(request, self._files.handle(info.fh))
        else:
            self._take(request, info.fh, waits)

    def _wanted(self, info: Any, lock: Any) -> pb.LockRequest:
        return pb.LockRequest(
            inode=self._files.handle(info.fh).file.inode, owner=info.lock_owner, first=lock.l_start,
            last=lock.l_start + lock.l_len - 1 if lock.l_len else END_OF_FILE,
            exclusive=lock.l_type == fcntl.F_WRLCK, process=max(lock.l_pid, 0))

    def flock(self, info: Any, operation: int) -> None:
        handle = self._files.handle(info.fh)
        request = pb.LockRequest(inode=handle.file.inode, owner=info.lock_owner, last=END_OF_FILE, whole=True,
                                 exclusive=bool(operation & fcntl.LOCK_EX))
        if operation & fcntl.LOCK_UN:
            self._give_up(request, handle)
        else:
            self._take(request, info.fh, waits=not operation & fcntl.LOCK_NB)

    def _take(self, request: pb.LockRequest, number: int, waits: bool) -> None:
        handle = self._files.handle(number)
        self._flush(handle, whole_file=True)
        self._acquire(request, number, waits)
        try:
            self._take_newest(handle)
        except SpeedwellError:
            self._unlock(request)
            raise

    def _give_up(self, request: pb.LockRequest, handle: Handle) -> None:
        if self._holders(request):
            try:
                self._flush(handle, whole_file=True)
            finally:
                self._unlock(request)

    def _acquire(self, request: pb.LockRequest, number: int, waits: bool) -> None:
        request.action, request.session = pb.LockRequest.ACQUIRE, self._session.number
        # Noted before it is asked for: whatever becomes of the answer, closing the file gives it up.
        self._locks_used = True
        self._files.handle(number).locks.add((request.owner, request.whole))
        reply = self._session.lock(request)
        if reply.granted:
            return self._granted(request.inode, number, reply.generation)
        if not waits:
            raise Locked("somebody else holds a lock there")
        if not self._lock_waiters.acquire(blocking=False):
            raise TooManyLocks(f"{MAX_WAITERS} programs of this mount wait for locks already")
        try:
            generation = self._wait_for(request)
        finally:
            self._lock_waiters.release()
        self._granted(request.inode, number, generation)

    def _wait_for(self, request: pb.LockRequest) -> int:
        """The session's generation that has the lock then."""
        request.waits = True
        while not (reply := self._session.lock(request)).granted:
            number = self._kernel.stopped_by()
            if number is not None:
                request.action = pb.LockRequest.STOP_WAITING
                self._session.lock(request)
                raise OSError(number, "stopped while waiting for a lock")
        return reply.generation

    def _granted(self, inode: int, number: int, generation: int) -> None:
        """From now on the file is changed under a lock, which may be lost."""
        handle = self._files.handle(number)
        lost = [other for other in handle.file.handles if other.lock_generation not in (None, generation)]
        if lost:    # what they wrote must not be published under the new lock
            error = LocksLost("this mount has lost the lock under which the file was written")
            handle.file.give_up(error)
            for other in lost:
                other.failure = error
        handle.lock_generation = generation
        self._metadata.fences[inode] = partial(self._session.require, generation)

    def _unlock(self, request: pb.LockRequest) -> None:
        if not self._holders(request):
            return
        request.action, request.session = pb.LockRequest.RELEASE, self._session.number
        self._session.lock(request)
        if request.first == 0 and request.last == END_OF_FILE:
            for handle in self._holders(request):
                handle.locks.discard((request.owner, request.whole))
            handles = self._handles_of(request.inode)
            if not any(handle.locks for handle in handles):
                self._metadata.fences.pop(request.inode, None)
                for handle in handles:
                    if handle.failure is None:
                        handle.lock_generation = None

    def _handles_of(self, inode: int) -> list[Handle]:
        file = self._files.by_inode(inode)
        return [] if file is None else list(file.handles)

    def _holders(self, request: pb.LockRequest) -> list[Handle]:
        """Through which that program has locks on the file, so that closing one without any asks nobody."""
        key = request.owner, request.whole
        return [handle for handle in self._handles_of(request.inode) if key in handle.locks]

    def _drop_locks_of(self, inode: int, owner: int) -> None:
        """Give up the locks of fcntl(2) that a program has on a file, whichever descriptor it closes."""
        if self._locks_used:
            self._unlock(pb.LockRequest(inode=inode, owner=owner, last=END_OF_FILE))

    def _unlock_all_of(self, handle: Handle) -> None:
        """A handle is gone: with it the locks that were taken through it."""
        for owner, whole in list(handle.locks):
            with suppress(SpeedwellError):  # it goes with the session's lease, if the nameserver stays away so long
                self._unlock(pb.LockRequest(inode=handle.file.inode, owner=owner, last=END_OF_FILE, whole=whole))
