"""Requests that only a POSIX mount makes: links and special files, extended attributes, sessions."""

import threading
from collections.abc import Callable
from dataclasses import replace

from speedwell.fs.errors import InvalidArgument, LocksLost, TooManyLocks, WouldDeadlock
from speedwell.fs.file_status import CAPABILITIES
from speedwell.fs.nameserver import requests
from speedwell.fs.nameserver.asking import asking
from speedwell.fs.nameserver.grants import Grants
from speedwell.fs.nameserver.locks import END_OF_FILE, Lock, LockTable
from speedwell.fs.nameserver.namespace import Namespace
from speedwell.fs.nameserver.records import SPECIAL_KINDS, Inode
from speedwell.fs.nameserver.sessions import MAX_OF_A_CLIENT, MAX_SESSIONS, Sessions
from speedwell.fs.proto import speedwell_pb2 as pb

LOCK_WAIT_SECONDS = 0.2
"""How long a request that waits for a lock is held back; then the client asks again, or gives up."""


class PosixRequests:
    """One method per rpc, callable from any thread."""

    guard: threading.RLock
    grants: Grants
    _namespace: Namespace
    _sessions: Sessions
    _locks: LockTable
    _locks_changed: threading.Condition
    _clock_ns: Callable[[], int]
    _clock_seconds: Callable[[], float]

    def _attributes(self, inode: Inode) -> pb.Attributes:
        raise NotImplementedError

    # -------------------------------------------------------------- links and special files

    def make_symbolic_link(self, request: pb.MakeSymbolicLinkRequest) -> pb.MakeSymbolicLinkReply:
        target = requests.link_target(request.target)
        uid, gid = requests.owner(request.uid, "uid"), requests.owner(request.gid, "gid")
        with self.guard:
            inode = self._namespace.make_symbolic_link(request.path, target, uid=uid, gid=gid,
                                                       now_ns=self._clock_ns())
            return pb.MakeSymbolicLinkReply(attributes=self._attributes(inode))

    def make_special(self, request: pb.MakeSpecialRequest) -> pb.MakeSpecialReply:
        if request.type not in SPECIAL_KINDS:
            raise InvalidArgument(f"type: {request.type} is not a fifo, socket or device")
        mode = requests.mode(request.mode)
        uid, gid = requests.owner(request.uid, "uid"), requests.owner(request.gid, "gid")
        umask = requests.mode(request.umask, "umask")
        with self.guard:
            inode = self._namespace.make_special(request.path, request.type, mode=mode, uid=uid, gid=gid,
                                                 device=request.device, umask=umask, now_ns=self._clock_ns())
            return pb.MakeSpecialReply(attributes=self._attributes(inode))

    def link(self, request: pb.LinkRequest) -> pb.LinkReply:
        destination = requests.path(request.destination, "destination")
        with self.guard:
            inode = self._namespace.link(request.source, destination, now_ns=self._clock_ns())
            return pb.LinkReply(attributes=self._attributes(inode))

    # -------------------------------------------------------------- extended attributes

    def list_extended_attributes(self, request: pb.ListExtendedAttributesRequest
                                 ) -> pb.ListExtendedAttributesReply:
        with self.guard:
            inode = self._namespace.lookup(request.path)
        attributes = inode.extended_attributes
        return pb.ListExtendedAttributesReply(extended_attributes=[
            pb.ExtendedAttribute(name=name, value=value) for name, value in attributes.items()
            if asking.authorization is None or asking.authorization.visible(name, inode.number)])

    def set_extended_attribute(self, request: pb.SetExtendedAttributeRequest) -> pb.SetExtendedAttributeReply:
        name = requests.attribute_name(request.extended_attribute.name)
        value = requests.attribute_value(request.extended_attribute.value)
        if request.create and request.replace:
            raise InvalidArgument("create: one of create and replace at most")
        with self.guard:
            if name == CAPABILITIES:
                self.grants.end_writes(self._namespace.lookup(request.path))
            inode = self._namespace.set_extended_attribute(
                request.path, name, value, create=request.create, replace=request.replace,
                now_ns=self._clock_ns(), clear_setgid=request.clear_setgid)
            return pb.SetExtendedAttributeReply(attributes=self._attributes(inode))

    def remove_extended_attribute(self, request: pb.RemoveExtendedAttributeRequest
                                  ) -> pb.RemoveExtendedAttributeReply:
        with self.guard:
            inode = self._namespace.remove_extended_attribute(request.path, request.name,
                                                              now_ns=self._clock_ns())
            return pb.RemoveExtendedAttributeReply(attributes=self._attributes(inode))

    # -------------------------------------------------------------- sessions

    def renew_session(self, request: pb.RenewSessionRequest) -> pb.RenewSessionReply:
        session = requests.session(request.session)
        with self.guard:
            self._expire_sessions()
            is_new = not self._sessions.is_known(session)
            self._require_session(session)
            return pb.RenewSessionReply(lease_seconds=self._sessions.lease_seconds, is_new=is_new,
                                        generation=self._sessions.generation(session))

    def end_session(self, request: pb.EndSessionRequest) -> pb.EndSessionReply:
        session = requests.session(request.session)
        with self.guard:
            self._end_session(session)
        return pb.EndSessionReply()

    def release(self, request: pb.ReleaseRequest) -> pb.ReleaseReply:
        session = requests.session(request.session)
        with self.guard:
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
            self._expire_sessions()
            self._require_session(session)
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
            self._expire_sessions()
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

    def _require_session(self, session: int) -> None:
        """Any sign of life renews a lease."""
        if not self._sessions.renew(session, self._clock_seconds(), asking.client):
            raise TooManyLocks(f"the nameserver has no more than {MAX_OF_A_CLIENT} sessions of one client, and "
                               f"{MAX_SESSIONS} in all")

    def _require_generation(self, request: pb.CommitRequest | pb.PublishRequest) -> None:
        """Raises LocksLost for what was written under a lock of a session that has ended since."""
        if request.session:
            self._expire_sessions()
            if self._sessions.generation(request.session) != request.generation:
                raise LocksLost(f"inode {request.inode}: the locks under which it was written are lost, as the mount "
                                "was not heard of for longer than its session's lease")

    def _expire_sessions(self) -> None:
        for session in self._sessions.expired(self._clock_seconds()):
            self._end_session(session)

    def _end_session(self, session: int) -> None:
        if self._locks.release_session(session):
            self._locks_changed.notify_all()
        self._namespace.release(session, self._clock_ns())
        self._sessions.end(session)
