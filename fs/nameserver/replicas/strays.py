"""What lies on dataservers where no file has it: contents without a file, replicas that have left their set.

It is dropped once it has been so for a grace period and nothing speaks against it. Nothing of this is kept on disk:
after a restart the dataservers report it again. One thread at a time (the service holds a lock).
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from speedwell.fs.nameserver.namespace.contents import Contents
from speedwell.fs.nameserver.namespace.namespace_records import Content
from speedwell.fs.nameserver.replicas.registry import Dataserver, Registry
from speedwell.fs.nameserver.replicas.replica_set import LOST_EPOCHS, MAX_EPOCH, overtaken
from speedwell.fs.nameserver.service import request_fields as requests
from speedwell.fs.proto import speedwell_pb2 as pb

log = logging.getLogger(__name__)


class Strays:
    """`grace_seconds` is how long a dataserver keeps what no file has; `is_made` says of an inode and a dataserver
    whether it makes a replica there."""

    def __init__(self, contents: Contents, registry: Registry, *, grace_seconds: float,
                 may_delete: Callable[[], bool], is_made: Callable[[int, int], bool]) -> None:
        self._contents = contents
        self._registry = registry
        self._grace_seconds = grace_seconds
        self._may_delete = may_delete
        self._is_made = is_made
        self._lost_epochs: dict[str, tuple[int, int]] = {}    # the newest one reported, and what was made of it
        self._orphans: dict[tuple[int, str], float] = {}
        self._left: dict[tuple[int, str], int] = {}     # what lies where its file has no replica any more: its epoch

    def orphan(self, inode: int, file_id: bytes, server: int) -> None:
        """A check found a content on `server` that is no replica of a file: no need to wait any longer."""
        content = self._contents.of(inode)
        if content is None or content.file_id != file_id or server not in content.replicas:
            self._orphans[server, requests.file_id_text(file_id)] = float("-inf")

    def left(self, file_id: str, content: Content, servers: Sequence[int], now_seconds: float) -> None:
        """`servers` have left the set: what they hold is theirs no more, and may go although the file is removed."""
        self._left.update({(number, file_id): content.epoch for number in servers
                           if number not in content.replicas and self._registry.is_alive(number, now_seconds)})

    def left_behind(self, now_seconds: float) -> Iterator[tuple[int, str]]:
        """(number of the dataserver, file id) of what waits for its deletion on live ones as the file has left it."""
        return (key for key in self._left if self._registry.is_alive(key[0], now_seconds))

    def lost(self, server: Dataserver, report: pb.FileReport, file_id: bytes, reply: pb.HeartbeatReply) -> None:
        """`server` cannot read a content: have it dropped if it is no replica."""
        content = self._contents.of(report.inode)
        if content is None or content.file_id != file_id or server.number not in content.replicas:
            if self._may_delete():
                reply.drop.add(file_id=report.file_id, inode=report.inode)
            else:
                self._orphans[server.number, report.file_id] = float("-inf")

    def reported(self, server: Dataserver, report: pb.FileReport, reply: pb.HeartbeatReply,
                 now_seconds: float) -> None:
        """Have `server` drop a content that no file has, or not on this server, once it has been so for long."""
        file_id = requests.file_id(report.file_id)
        key = server.number, report.file_id
        if not report.inode and key not in self._orphans:
            return   # it cannot be read: not known to be an orphan unless a check found it so
        content = self._contents.of(report.inode)
        member = content is not None and content.file_id == file_id and server.number in content.replicas
        if content is not None and content.file_id == file_id and self._is_newer(report, content.epoch):
            log.warning("inode %d: the dataserver %s knows epoch %d, which the namespace does not", report.inode,
                        server.dataserver_id, report.epoch)
            content = self._contents.configure(report.inode, file_id, partial(
                overtaken, epoch=report.epoch, member=server.number))[1]
            self._lost_epochs[report.file_id] = report.epoch, content.epoch
        if member or self._is_made(report.inode, server.number):
            self._forget(key)
            return
        current = content is not None and content.file_id == file_id
        if current and content is not None:
            self._left[key] = content.epoch
        since = self._orphans.setdefault(key, now_seconds)
        if now_seconds - since < self._grace_seconds or not self._may_delete():
            return
        if current and content is not None and not self._registry.is_alive(content.replicas[0], now_seconds):
            return   # it may be the last one that can be read
        reply.drop.add(file_id=report.file_id, inode=report.inode, epoch=self._left.get(key, 0), size=report.size)
        self._forget(key)

    def _forget(self, key: tuple[int, str]) -> None:
        self._orphans.pop(key, None)
        self._left.pop(key, None)

    def _is_newer(self, report: pb.FileReport, epoch: int) -> bool:
        """Whether it tells of an epoch that was lost: beyond all, or between the last one reported and the gap."""
        known, raised = self._lost_epochs.get(report.file_id, (epoch, epoch))
        return epoch < report.epoch <= MAX_EPOCH or known < report.epoch < min(raised, known + LOST_EPOCHS)
