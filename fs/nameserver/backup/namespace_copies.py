"""Requests to write a namespace out, record by record, and to fill an empty one from such records."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from speedwell.fs.errors import DirectoryNotEmpty, InvalidArgument
from speedwell.fs.nameserver.backup import dumping
from speedwell.fs.nameserver.backup.loading import Dumped, fill
from speedwell.fs.nameserver.backup.provenance import identity_of
from speedwell.fs.nameserver.namespace.namespace import Namespace
from speedwell.fs.nameserver.namespace.namespace_records import ROOT_INODE
from speedwell.fs.nameserver.replicas.recovery import Recovery
from speedwell.fs.nameserver.replicas.registry import Registry
from speedwell.fs.nameserver.service import request_fields as requests
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import Batch, Store

log = logging.getLogger(__name__)

MOST_DUMPS = 4
IDLE_SECONDS = 60.0
"""A dump of which no part was asked for is given up."""


@dataclass
class _Dump:
    records: Iterator[pb.NamespaceRecord]
    next_inode: int
    heard_seconds: float
    waiting: list[pb.NamespaceRecord] = field(default_factory=list)
    part: int = -1
    reply: pb.DumpReply = field(default_factory=pb.DumpReply)


@dataclass
class _Load:
    number: int
    dumped: Dumped = field(default_factory=Dumped)
    part: int = -1
    reply: pb.LoadReply | None = None


class NamespaceCopies:
    """Callable from any thread; `guard` is the service's."""

    def __init__(self, guard: threading.RLock, store: Store, namespace: Namespace, registry: Registry,
                 recovery: Recovery, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._guard = guard
        self._store = store
        self._namespace = namespace
        self._registry = registry
        self._recovery = recovery
        self._clock_seconds = clock_seconds
        self._dumps: dict[int, _Dump] = {}
        self._load: _Load | None = None

    def dump(self, request: pb.DumpRequest) -> pb.DumpReply:
        """Raises InvalidArgument for a dump or a part that is not under way."""
        number = requests.number(request.dump, "dump", 2**64 - 1, 1)
        with self._guard:
            now = self._clock_seconds()
            self._dumps = {key: dump for key, dump in self._dumps.items() if now - dump.heard_seconds < IDLE_SECONDS}
            if number not in self._dumps and not request.part:
                self._begin(number, now)
            dump = self._dumps.get(number)
            if dump is None:
                raise InvalidArgument("dump: it is not under way (any more): begin again")
            dump.heard_seconds = now
            if request.part == dump.part + 1 and not dump.reply.last:
                try:
                    dump.reply, dump.part = self._next_part(dump), request.part
                except BaseException:
                    del self._dumps[number]     # what it was read from ends as if there were no more
                    raise
            elif request.part != dump.part:
                raise InvalidArgument(f"part: {request.part} does not follow part {dump.part}")
            return dump.reply

    def load(self, request: pb.LoadRequest) -> pb.LoadReply:
        """Part 0 takes the place of a load that was not ended. Raises InvalidArgument for what does not make a
        namespace, DirectoryNotEmpty; then nothing has changed."""
        number = requests.number(request.load, "load", 2**64 - 1, 1)
        with self._guard:
            load = self._load
            if load is not None and load.number == number and request.part == load.part and load.reply is not None:
                return load.reply           # the answer was lost
            self._require_empty()
            if not request.part and (load is None or load.number != number):
                load = self._load = _Load(number)
            if load is None or load.number != number or request.part not in (load.part, load.part + 1):
                raise InvalidArgument("load: it is not under way (any more): begin again")
            if request.part == load.part:
                return pb.LoadReply()       # likewise
            try:
                for record in request.records:
                    load.dumped.add(record)
                load.part = request.part
                load.reply = self._finish(load, request.next_inode) if request.last else None
            except BaseException:
                self._load = None
                raise
            return load.reply or pb.LoadReply()

    # ------------------------------------------------------------------ private

    def _begin(self, number: int, now_seconds: float) -> None:
        if len(self._dumps) >= MOST_DUMPS:
            raise InvalidArgument(f"dump: {MOST_DUMPS} are under way already")
        self._dumps[number] = _Dump(dumping.dump(self._store), dumping.next_inode(self._store), now_seconds)

    def _next_part(self, dump: _Dump) -> pb.DumpReply:
        records, size = dump.waiting, 0
        for record in dump.records:
            records.append(record)
            size += record.ByteSize()
            if size >= requests.LIST_BYTES // 2:
                break
        fitting, more = requests.page(records, lambda record: record.ByteSize())
        dump.waiting = records[len(fitting):]
        return pb.DumpReply(records=fitting, last=not more and size < requests.LIST_BYTES // 2,
                            namespace=identity_of(self._store), next_inode=dump.next_inode)

    def _require_empty(self) -> None:
        """A namespace in which something was made has given out numbers that must not be given out again."""
        if self._namespace.superblocks.next_inode > ROOT_INODE + 1 or next(self._namespace.accounting.all(), None) \
                or self._namespace.trash.policies:
            raise DirectoryNotEmpty("a namespace is loaded only into a new installation, in which nothing was ever "
                                    "made, limited or removed")

    def _finish(self, load: _Load, next_inode: int) -> pb.LoadReply:
        batch = Batch()
        numbers = self._registry.introduce(batch, load.dumped.dataservers.values())
        superblock = fill(batch, load.dumped, numbers, requests.number(next_inode, "next_inode", 2**63 - 1))
        # Before the write, which may have happened if it fails.
        self._namespace.accounting.any = bool(load.dumped.quotas)
        self._store.write(batch)
        load.dumped = Dumped()
        self._registry.introduced(batch, self._clock_seconds())
        self._namespace.trash.load_policies()
        self._recovery.look_again()
        log.warning("a namespace of %d files and %d directories was loaded", superblock.files, superblock.directories)
        silent = [name for name, number in numbers.items() if not self._registry.was_heard(number)]
        return pb.LoadReply(files=superblock.files, directories=superblock.directories, silent=sorted(silent))
