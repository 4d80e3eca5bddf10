"""Requests of sessions: what a mount keeps while it lives, locks and open files without a name."""

import threading
from collections.abc import Callable
from dataclasses import replace

from speedwell.fs.errors import InvalidArgument, LocksLost, TooManyLocks, WouldDeadlock
from speedwell.fs.nameserver.locks.lock_table import END_OF_FILE, Lock, LockTable
from speedwell.fs.nameserver.locks.sessions import MAX_OF_A_CLIENT, MAX_SESSIONS, Sessions
from speedwell.fs.nameserver.namespace.namespace import Namespace
from speedwell.fs.nameserver.service import request_fields as requests
from speedwell.fs.nameserver.service.asking import asking
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import Store

LOCK_WAIT_SECONDS = 0.2
"""How long a request that waits for a lock is held back; then the client asks again, or gives up."""


class SessionRequests:
    """One method per rpc, callable from any thread; `guard` is the service's."""

    def __init__(self, guard: threading.RLock, store: Store, namespace: Namespace, lease_seconds: float,
                 clock_seconds: Callable[[], float], clock_ns: Callable[[], int]) -> None:
        self._guard = guard
        self._namespace = namespace
        self._clock_seconds = clock_seconds
        self._clock_ns = clock_ns
        self._locks = LockTable(store)
        self._locks_changed = threading.Condition(guard)
        self._sessions = Sessions(lease_seconds, namespace.holders() | set(self._locks.sessions()), clock_seconds(),
                                  self._locks.sessions())

    def renew_session(self, request: pb.RenewSessionRequest) -> pb.RenewSessionReply:
        session = requests.session(request.session)
        with self._guard:
            self.expire()
            is_new = not self._sessions.is_known(session)
            self.require_session(session)
            return pb.RenewSessionReply(lease_seconds=self._sessions.lease_seconds, is_new=is_new,
                                        generation=self._sessions.generation(session))

    def end_session(self, request: pb.EndSessionRequest) -> pb.EndSessionReply:
        session = requests.session(request.session)
        with self._guard:
            self._end_session(session)
        return pb.EndSessionReply()

    def release(self, request: pb.ReleaseRequest) -> pb.ReleaseReply:
        session = requests.session(request.session)
        with self._guard:
            self._namespace.release(session, self._clock_ns(), request.inodes)
        return pb.ReleaseReply()

    # -------------------------------------------------------------- locks

    def lock(self, request: pb.LockRequest) -> pb.LockReply:
        """Raises WouldDeadlock, TooManyLocks. A file that is gone can be locked by who still has it open."""
        session = requests.session(request.session)
        requests.number(request.inode, "inode", 2**64 - 1, 1)
        requests.number(request.last, "last", END_OF_FILE, request.first)
        wanted = Lock(session, request.owner, request.first, request.last, request.exclusive, request.whole,
                      request.process)
        action = request.action
        with self._locks_changed:
            self.expire()
            self.require_session(session)
            if action == pb.LockRequest.TEST:
                return self._lock_reply(self._locks.conflict(request.inode, wanted))
            if action == pb.LockRequest.ACQUIRE:
                wanted = replace(wanted, generation=self._sessions.generation(session))
                reply = self._lock_reply(self._acquire(request.inode, wanted, request.waits))
                reply.generation = wanted.generation
                return reply
            if action == pb.LockRequest.RELEASE:
                if self._locks.release(request.inode, wanted):
                    self._locks_changed.notify_all()
            elif action == pb.LockRequest.STOP_WAITING:
                self._locks.stop_waiting(wanted.held_by)
            else:
                raise InvalidArgument(f"action: {action} is none")
            return pb.LockReply(granted=True)

    def _acquire(self, inode: int, wanted: Lock, waits: bool) -> Lock | None:
        conflict = self._locks.acquire(inode, wanted)
        if conflict is None:
            self._locks_changed.notify_all()  # an exclusive lock may have become a shared one
            return None
        if waits:
            if not self._locks.wait(inode, wanted, self._clock_seconds()):
                raise WouldDeadlock(f"inode {inode}: who holds the lock waits for one of the caller's")
            self._locks_changed.wait(LOCK_WAIT_SECONDS)
            self.expire()
            if self._sessions.generation(wanted.session) != wanted.generation:
                raise LocksLost("the session has ended while it waited for a lock")
            conflict = self._locks.acquire(inode, wanted)
        return conflict

    @staticmethod
    def _lock_reply(conflict: Lock | None) -> pb.LockReply:
        if conflict is None:
            return pb.LockReply(granted=True)
        # not its session: who knows the number of one can end it
        return pb.LockReply(conflict=pb.LockRecord(
            owner=conflict.owner, first=conflict.first, last=conflict.last,
            exclusive=conflict.exclusive, whole=conflict.whole, process=conflict.process))

    # -------------------------------------------------------------- lives of sessions

    def require_session(self, session: int) -> None:
        """Any sign of life renews a lease."""
        if not self._sessions.renew(session, self._clock_seconds(), asking.client):
            raise TooManyLocks(f"the nameserver has no more than {MAX_OF_A_CLIENT} sessions of one client, and "
                               f"{MAX_SESSIONS} in all")

    def require_generation(self, request: pb.CommitRequest | pb.PublishRequest) -> None:
        """Raises LocksLost for what was written under a lock of a session that has ended since."""
        if request.session:
            self.expire()
            if self._sessions.generation(request.session) != request.generation:
                raise LocksLost(f"inode {request.inode}: the locks under which it was written are lost, as the mount "
                                "was not heard of for longer than its session's lease")

    def expire(self) -> None:
        for session in self._sessions.expired(self._clock_seconds()):
            self._end_session(session)

    def _end_session(self, session: int) -> None:
        if self._locks.release_session(session):
            self._locks_changed.notify_all()
        self._namespace.release(session, self._clock_ns())
        self._sessions.end(session)
