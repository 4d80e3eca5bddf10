"""The copies of the namespace that dataservers keep: who keeps one, and feeding them.

A dataserver that is told to keep one asks for what comes next, ten times a second (`fs.dataserver.upkeep.mirroring`).
A new copy is made in pieces while the namespace changes, so what it holds then is of no single moment; the batches
written since the beginning make it whole. Times are monotonic seconds, passed in.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from speedwell.fs.errors import NamespaceRebuilding, WrongNamespace
from speedwell.fs.nameserver.backup.copy_holders import (
    HOLDERS_KEY,
    Holders,
    decode_holders,
    encode_holders,
    position_message,
    position_of,
)
from speedwell.fs.nameserver.replicas.registry import Dataserver, Registry
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import Batch, JournaledStore, Position
from speedwell.fs.store.change_encoding import encode_changes
from speedwell.fs.store.journaled import HIDDEN_END

log = logging.getLogger(__name__)

RECORDS_BYTES = 512 << 10
COPY_BYTES = 128 << 10
"""Of a new copy at once: a millisecond or two in which nothing else is answered."""

LEVEL_WITHIN = 1000
"""Batches that a copy may be behind to become one of the holders'."""


@dataclass
class _Progress:
    """How far a dataserver's copy was when it last asked."""

    sequence: int
    complete: bool
    heard_seconds: float


class Mirrors:
    """`heartbeat` is called under the service's lock, `pull` by any thread.

    `doubt` is called with a message when a dataserver shows that this nameserver is not up to date.
    """

    def __init__(self, store: JournaledStore, registry: Registry, count: int, *, grace_seconds: float,
                 doubt: Callable[[str], None]) -> None:
        self._store = store
        self._registry = registry
        self._count = count
        self._grace_seconds = grace_seconds
        self._doubt = doubt
        self._progress: dict[str, _Progress] = {}
        self._building: set[str] = set()
        self.holders = read_holders(store)

    # ------------------------------------------------------------------ heartbeats

    def check(self, request: pb.HeartbeatRequest) -> None:
        """Raises WrongNamespace for a dataserver of another namespace, NamespaceRebuilding if this nameserver turns
        out not to have the newest state."""
        name, theirs = request.server.dataserver_id, request.holders
        own = self._store.position
        if theirs.namespace and theirs.namespace != own.namespace:
            raise WrongNamespace(f"the dataserver {name} belongs to the namespace {theirs.namespace.hex()}, this "
                                 f"nameserver keeps {own.namespace.hex()}")
        if theirs.version > self.holders.version:
            self._give_up(name)
        if request.HasField("mirror"):
            self._refuse_newer(name, position_of(request.mirror))

    def _refuse_newer(self, name: str, theirs: Position) -> None:
        """A copy that is further than this nameserver must not be replaced by what is here."""
        own = self._store.position
        if theirs.namespace == own.namespace and (theirs.timeline, theirs.sequence) > (own.timeline, own.sequence):
            self._give_up(name)

    def _give_up(self, name: str) -> None:
        why = f"the dataserver {name} knows a newer state of the namespace"
        self._doubt(why)
        raise NamespaceRebuilding(f"{why} than the nameserver")

    def heartbeat(self, server: Dataserver, reply: pb.HeartbeatReply, now_seconds: float) -> None:
        """Raises StorageFailed."""
        if self._count:
            self._tend(now_seconds)
        elif self.holders.members:
            self._change(())
        reply.holders.CopyFrom(self.holders.message())
        reply.keep_mirror = server.dataserver_id in self._building or server.dataserver_id in self.holders.members

    def statuses(self) -> list[pb.MirrorStatus]:
        """Of all copies."""
        sequence = self._store.position.sequence
        return [pb.MirrorStatus(
            dataserver_id=name, holder=name in self.holders.members,
            behind=sequence - self._progress[name].sequence if name in self._progress else sequence)
            for name in sorted(self._building | set(self.holders.members))]

    # ------------------------------------------------------------------ feeding

    def pull(self, request: pb.MirrorRequest, now_seconds: float) -> pb.MirrorReply:
        """What a copy needs next. Raises StorageFailed."""
        own = self._store.position
        reply = pb.MirrorReply(position=position_message(own))
        if not request.HasField("position"):
            reply.anew = reply.more = True
            return reply
        theirs = position_of(request.position)
        if request.complete:
            self._refuse_newer(request.dataserver_id, theirs)
        self._progress[request.dataserver_id] = _Progress(
            theirs.sequence, request.complete and own.continues(theirs), now_seconds)
        if request.copying:
            self._copy(request.cursor, reply)
            return reply
        records = self._store.journal.read(theirs.sequence, own.sequence, RECORDS_BYTES) \
            if own.continues(theirs) else None
        if records is None:
            reply.anew = reply.more = True
        else:
            reply.records = records
            reply.more = len(records) > RECORDS_BYTES // 2
        return reply

    def _copy(self, cursor: bytes, reply: pb.MirrorReply) -> None:
        changes, size = [], 0
        reply.copied = True
        for key, value in self._store.iterate(cursor + b"\0" if cursor else HIDDEN_END):
            changes.append((key, value))
            size += len(key) + len(value)
            if size >= COPY_BYTES:
                reply.copied = False
                break
        reply.changes = encode_changes(changes)
        reply.cursor = changes[-1][0] if changes else cursor
        # A batch is in the journal before it is in the database, so this is no less than what was read.
        reply.position.sequence = self._store.journal.last
        if reply.copied and (holders := self._store.get(HOLDERS_KEY)) is not None:
            reply.changes += encode_changes([(HOLDERS_KEY, holders)])

    # ------------------------------------------------------------------ who has a copy

    def _tend(self, now_seconds: float) -> None:
        """Bring the list of the holders one step nearer to what it should be."""
        here = {server.dataserver_id: server for server, _ in self._registry.statuses()
                if self._registry.is_alive(server.number, now_seconds) and not server.draining}
        self._building &= set(here)
        level = {name for name in here if self._is_level(name, now_seconds)}
        members = self.holders.members
        if ready := sorted(name for name in self._building & level if name not in members):
            self._building.discard(ready[0])
            self._change((*members, ready[0]))
            return
        kept = [name for name in members if name in here or not self._is_gone(name, now_seconds)]
        gone = [name for name in members if name not in kept]
        surplus = kept[self._count:] if len(kept) > self._count and len(level & set(kept)) > self._count else []
        leaving = (gone or surplus)[:1]
        if leaving and level & set(members) - set(leaving):
            self._change(tuple(name for name in members if name not in leaving))
            return
        self._choose(here, {*kept, *self._building})

    def _is_level(self, name: str, now_seconds: float) -> bool:
        progress = self._progress.get(name)
        return (progress is not None and progress.complete and now_seconds - progress.heard_seconds < 5.0
                and self._store.position.sequence - progress.sequence <= LEVEL_WITHIN)

    def _is_gone(self, name: str, now_seconds: float) -> bool:
        number = self._registry.number_of(name)
        return number is None or self._registry.is_draining(number) or \
            self._registry.silent_seconds(number, now_seconds) > self._grace_seconds

    def _choose(self, here: dict[str, Dataserver], taken: set[str]) -> None:
        """Have further dataservers make a copy, in racks that have the fewest, as long as there are too few."""
        racks = Counter(server.rack for name, server in here.items() if name in taken)
        while len(taken) < self._count:
            free = [server for name, server in here.items() if name not in taken]
            if not free:
                return
            chosen = min(free, key=lambda server: (racks[server.rack], server.number))
            racks[chosen.rack] += 1
            taken.add(chosen.dataserver_id)
            self._building.add(chosen.dataserver_id)
            log.info("the dataserver %s is to keep a copy of the namespace", chosen.dataserver_id)

    def _change(self, members: tuple[str, ...]) -> None:
        holders = replace(self.holders, namespace=self._store.position.namespace, members=members,
                          version=self.holders.version + 1)
        write_holders(self._store, holders)
        self.holders = holders
        log.info("copies of the namespace: %s", ", ".join(members))


def read_holders(store: JournaledStore) -> Holders:
    """The list in a store. Raises DatabaseDamaged."""
    value = store.get(HOLDERS_KEY)
    namespace = store.position.namespace
    return Holders(namespace) if value is None else decode_holders(namespace, value)


def write_holders(store: JournaledStore, holders: Holders) -> None:
    """Put the list into a store. Raises StorageFailed."""
    batch = Batch()
    batch.put(HOLDERS_KEY, encode_holders(holders))
    store.write(batch)
