"""Requests about what was removed."""

import logging
import threading
from collections.abc import Callable

from speedwell.fs.errors import SpeedwellError
from speedwell.fs.limits import MAX_KEEP_SECONDS
from speedwell.fs.nameserver.backup.namespace_age import Age
from speedwell.fs.nameserver.namespace.namespace_records import Inode
from speedwell.fs.nameserver.namespace.trash import Trash
from speedwell.fs.nameserver.service import request_fields as requests
from speedwell.fs.proto import speedwell_pb2 as pb

log = logging.getLogger(__name__)


class TrashRequests:
    """One method per rpc, callable from any thread; `guard` is the service's."""

    def __init__(self, guard: threading.RLock, trash: Trash, age: Age,
                 attributes: Callable[[Inode], pb.Attributes], clock_ns: Callable[[], int]) -> None:
        self._guard = guard
        self._trash = trash
        self._age = age
        self._attributes = attributes
        self._clock_ns = clock_ns

    def set_trash(self, request: pb.SetTrashRequest) -> pb.SetTrashReply:
        keep_ns = requests.number(request.keep_ns, "keep_ns", MAX_KEEP_SECONDS * 10**9)
        with self._guard:
            self._trash.set_policy(request.path, keep_ns)
        return pb.SetTrashReply()

    def entries(self, request: pb.TrashRequest) -> pb.TrashReply:
        after_due_ns = requests.number(request.after_due_ns, "after_due_ns", requests.MAX_TIME_NS)
        limit = min(request.limit or requests.LIST_LIMIT, requests.LIST_LIMIT)
        with self._guard:
            found = self._trash.entries_after(after_due_ns, request.after_inode, limit)
            off_ns = self._clock_ns() - self._age.now_ns()
            entries, cut = requests.page((
                pb.TrashEntry(due_ns=entry.due_ns, removed_ns=entry.removed_ns, path=entry.path,
                              kept_until_ns=max(0, entry.due_ns + off_ns),
                              attributes=self._attributes(entry.inode)) for entry in found), pb.TrashEntry.ByteSize)
            policies = sorted(self._trash.policies.values(), key=lambda policy: policy.path)
            return pb.TrashReply(entries=entries, policies=policies, more=cut or len(found) == limit)

    def restore(self, request: pb.RestoreRequest) -> pb.RestoreReply:
        due_ns, inode = self._entry(request, "")
        path = requests.path(request.path)
        with self._guard:
            restored = self._trash.restore(due_ns, inode, path, now_ns=self._clock_ns())
            return pb.RestoreReply(attributes=self._attributes(restored))

    def purge(self, request: pb.PurgeRequest) -> pb.PurgeReply:
        requests.number(len(request.entries), "entries", requests.LIST_LIMIT)
        entries = [self._entry(entry, f"entries[{index}].") for index, entry in enumerate(request.entries)]
        with self._guard:
            return pb.PurgeReply(purged=self._trash.purge(entries, now_ns=self._clock_ns()))

    @staticmethod
    def _entry(request: pb.RestoreRequest, field: str) -> tuple[int, int]:
        return (requests.number(request.due_ns, f"{field}due_ns", requests.MAX_TIME_NS),
                requests.number(request.inode, f"{field}inode", 2**64 - 1, 1))

    def expire(self) -> None:
        """Let go of some whose time is over."""
        try:
            self._trash.expire(self._clock_ns())
            self._age.keep()
        except SpeedwellError as error:
            log.warning("the trash is not emptied for now: %s", error)
