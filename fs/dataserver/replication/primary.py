"""Ordering the changes of a file, its appends and its new versions, as its primary.

An append is acknowledged when every replica of the set holds it. Replicas that do not are taken out of the set
by the nameserver first, at an epoch that it counts up: a primary that was deposed meanwhile is told so there or
by the replicas, and acknowledges nothing. Replicas that differ in length are made level before anything is ordered.
After PacificA (Lin et al., 2008): the primary commits last, so a reader never sees what one failure takes back.
"""

import logging
from collections.abc import Callable, Collection, Iterable

from speedwell.fs.checksums import BLOCK_BYTES
from speedwell.fs.dataserver.admission import Door
from speedwell.fs.dataserver.disk.durability import sync
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.disk.stored_file import StoredFile
from speedwell.fs.dataserver.replication.append_log import Record
from speedwell.fs.dataserver.replication.append_writer import AppendWriter
from speedwell.fs.dataserver.replication.exchange import Writer, require_epoch
from speedwell.fs.dataserver.replication.one_change import TURN_SECONDS, Refused, cut, note, turn
from speedwell.fs.dataserver.replication.ordering import ReplicaSet
from speedwell.fs.dataserver.replication.payload import Payload
from speedwell.fs.dataserver.replication.peers import Peer, Peers
from speedwell.fs.dataserver.replication.primary_office import Authority, Office
from speedwell.fs.dataserver.replication.relay import Relay
from speedwell.fs.errors import NoSpace, StorageFailed
from speedwell.fs.proto.speedwell_pb2 import (
    BUSY,
    FENCED,
    IO_ERROR,
    OK,
    OUT_OF_DATE,
    UNKNOWN,
    AppendOperation,
    Attributes,
    Copy,
    DataReply,
    JoinOperation,
    LengthOperation,
    SyncOperation,
)
from speedwell.fs.wire.channel import Channel
from speedwell.fs.wire.connections import ConnectionPool

log = logging.getLogger(__name__)

LEVEL_BYTES = 256 << 20
"""A replica that lacks more is not caught up while appends wait: it leaves the set and is made anew."""

PUSHED_BYTES = 32 << 20
"""What a dataserver that joins may lack; appends wait while it gets it."""

MOST_VERSIONS = 20
"""That are followed for a dataserver that joins."""


def copy_of(attributes: Attributes, former: Copy) -> Copy:
    """The order to copy the content of `attributes` in place of that of `former`, an earlier one of the file."""
    return Copy(file_id=attributes.file_id, inode=former.inode, chunk_size=attributes.chunk_size,
                epoch=attributes.epoch, replicas=attributes.replicas, replaces=former.replaces)


class Primary:
    """Orders the appends of the files whose primary this dataserver is. Thread-safe."""

    def __init__(self, store: FileStore, connections: ConnectionPool, authority: Authority, door: Door) -> None:
        self._store = store
        self._connections = connections
        self._door = door
        self._peers = Peers(connections, door)
        self.office = Office(authority, self._peers)

    def order(self, channel: Channel, operation: AppendOperation, payload: Payload) -> DataReply:
        """Carry out a client's append. Raises Refused, NoSpace, NoSuchFile, StorageFailed, StaleEpoch."""
        with self._store.opened_for_append(operation.file_id, operation.inode, operation.path,
                                           operation.chunk_size, operation.length) as file, \
                turn(file, operation.epoch, channel, TURN_SECONDS):
            replicas = self.office.take_charge(file, operation.epoch, operation.relay,
                                               min_replicas=operation.min_replicas)
            self._store.make_room(file, operation.length)
            wanted = operation.records[0]
            done = self._done_before(file, replicas, operation)
            if done is not None:
                payload.discard()
                return self._reply(file, operation, done.offset, ())
            replicas = self.require_length(file, replicas, operation.known_size)
            record = Record(wanted.writer, wanted.sequence, file.length, operation.length)
            try:
                failed = self._append(file, replicas, operation, [record], payload)
                if self.office.authority.policy.value == "always":
                    failed += self.force(file, file.ordering.replicas or replicas, file)[1]
            except (StorageFailed, NoSpace) as error:
                self.office.step_down(file, replicas, error, record.end)
            self._store.grown.note(file)
            return self._reply(file, operation, record.offset, failed)

    def join(self, channel: Channel, operation: JoinOperation) -> DataReply:
        """Bring a dataserver that copied the file up to date, and have it join the set while nothing is appended.
        Versions that are made meanwhile are followed: nobody else waits for the turn of one that has just been
        published.

        Raises Refused, NoSuchFile, StaleEpoch, StorageFailed.
        """
        followed: Attributes | None = None
        for _ in range(MOST_VERSIONS):
            copy = operation.copy
            with self._store.opened_for_append(copy.file_id, copy.inode, b"", copy.chunk_size,
                                               operation.length) as file, \
                    turn(file, copy.epoch, channel, TURN_SECONDS):
                successor = file.ordering.successor
                if successor is None or not operation.follow:
                    return self._join(file, operation, followed)
            followed = successor
            operation = JoinOperation(copy=copy_of(successor, copy), candidate=operation.candidate, follow=True)
        raise Refused(BUSY, f"{MOST_VERSIONS} versions were made while a dataserver waited to join", 0)

    def _join(self, file: StoredFile, operation: JoinOperation, followed: Attributes | None) -> DataReply:
        """Who calls has the file's turn."""
        copy, own = operation.copy, self.office.authority.dataserver_id
        replicas = self.office.take_charge(file, copy.epoch, copy.replicas[1:], leaving=copy.replaces)
        file.ordering.pinned = True
        peer = Peer(operation.candidate, True, operation.length)
        if not operation.length <= file.length <= operation.length + PUSHED_BYTES:
            raise Refused(OUT_OF_DATE, f"the file has {file.length} bytes", file.length)
        if operation.digest != file.digest(0, operation.length // BLOCK_BYTES, file.committed):
            raise Refused(IO_ERROR, "the copy's sums differ from those of the primary", file.length)
        replicas = self.level(file, replicas, leaving=copy.replaces)
        if not self._peers.push(peer, file, replicas.epoch):
            raise Refused(OUT_OF_DATE, "the last bytes could not be passed on", file.length)
        if self.office.authority.policy.value != "never" \
                and self._peers.force([peer.replica], file, replicas.epoch):
            raise Refused(IO_ERROR, f"dataserver {peer.id} cannot force its copy to the disk", file.length)
        if own not in copy.replaces:
            replicas = self.office.change(file, replicas, remove=copy.replaces, add=[peer.id])
        else:
            self.office.leave(file, replicas, peer.id)
        return DataReply(status=OK, file_size=file.length, epoch=replicas.epoch, attributes=followed)

    def require_length(self, file: StoredFile, replicas: ReplicaSet, known_size: int) -> ReplicaSet:
        """Have `file` hold at least `known_size` bytes, which others know of. Raises Refused."""
        if file.length < known_size:
            replicas = self.level(file, replicas)
        if file.length < known_size:
            raise Refused(OUT_OF_DATE, f"{known_size} bytes are committed, this replica has only {file.length}",
                          file.length)
        return replicas

    def current_length(self, channel: Channel, operation: LengthOperation) -> int:
        """The length that has every append acknowledged so far: nobody else is the primary.

        Raises Refused, NoSuchFile, StaleEpoch, StorageFailed.
        """
        with self._store.opened(operation.file_id) as file:
            self.office.require_lease(file)
            term, ordering = self.office.authority.lease.term, file.ordering
            if ordering.replicas is None or ordering.confirmed != (term, ordering.replicas.epoch) \
                    or ordering.replicas.epoch < operation.epoch:
                with turn(file, operation.epoch, channel, TURN_SECONDS):
                    replicas = self.office.replica_set(file, operation.epoch, operation.others)
                    replicas = self.office.change(file, replicas)  # no change: the nameserver confirms the epoch
                    if ordering.level_epoch != replicas.epoch:
                        replicas = self.level(file, replicas)
                    ordering.confirmed = term, replicas.epoch
            length = file.length
            self.office.require_lease(file)
            if self.office.authority.lease.term != term:
                raise Refused(FENCED, "the lease was lost and got again", file.length)
            return length

    def sync(self, channel: Channel, operation: SyncOperation) -> DataReply:
        """Force what is committed of a file to the disks of all its replicas, or, if that is relayed, to this one.

        Raises Refused, NoSuchFile, NoSpace, StaleEpoch, StorageFailed.
        """
        with self._store.opened(operation.file_id) as file:
            if file.length < operation.length:
                raise Refused(OUT_OF_DATE, f"{operation.length} bytes are committed, this replica has only "
                              f"{file.length}", file.length)
            if operation.relayed:
                require_epoch(file, operation.epoch)
                sync(file)
            elif self.office.authority.policy.value != "never":
                replicas = file.ordering.replicas
                if replicas is None or replicas.epoch < operation.epoch:
                    with turn(file, operation.epoch, channel, TURN_SECONDS):
                        replicas = self.office.replica_set(file, operation.epoch, operation.others)
                failed = self._peers.force(replicas.others, file, replicas.epoch, lambda: sync(file))
                if failed:
                    with turn(file, operation.epoch, channel, TURN_SECONDS):
                        self._drop_present(file, file.ordering.replicas or replicas, failed)
            return DataReply(status=OK, file_size=file.length)

    def force(self, file: StoredFile, replicas: ReplicaSet, content: StoredFile) -> tuple[ReplicaSet, list[str]]:
        """Force `content`, which is `file` or a version made from it, to the disks of all replicas. Returns the set
        that has done so and who had to leave for that. The caller has the turn of `file`.

        Raises Refused, StaleEpoch, StorageFailed, NoSpace.
        """
        failed = self._peers.force(replicas.others, content, replicas.epoch, lambda: sync(content))
        return self._drop_present(file, replicas, failed), failed

    def _drop_present(self, file: StoredFile, replicas: ReplicaSet, failed: list[str]) -> ReplicaSet:
        present = {replica.dataserver_id for replica in replicas.others}.intersection(failed)
        return self.office.drop(file, replicas, present) if present else replicas

    def level(self, file: StoredFile, replicas: ReplicaSet, leaving: Collection[str] = ()) -> ReplicaSet:
        """Have all replicas hold the same bytes, the most that any has; who cannot be reached leaves the set.
        Those `leaving` need not.

        The caller has the file's turn. Raises Refused, StaleEpoch.
        """
        while True:
            peers = [self._peers.ask(replica, file, replicas.epoch) for replica in replicas.others
                     if replica.dataserver_id not in leaving]
            failed = [peer.id for peer in peers if not peer.reached or not self._catch_up(file, replicas, peer)]
            if failed:
                replicas = self.office.drop(file, replicas, failed)
            ahead = [peer for peer in peers if peer.length > file.length and peer.id not in failed]
            if not ahead:
                file.ordering.level_epoch = replicas.epoch
                return replicas
            replicas = self._adopt(file, replicas, ahead)

    # ------------------------------------------------------------------ what was done before

    def _done_before(self, file: StoredFile, replicas: ReplicaSet, operation: AppendOperation) -> Record | None:
        """The append as it lies in the file already, held by every replica. Raises Refused."""
        wanted = operation.records[0]
        appends = file.ordering.log(file.length)
        last = appends.last(wanted.writer)
        if operation.retry and (last is None or last.sequence < wanted.sequence) \
                and file.ordering.level_epoch != replicas.epoch:
            replicas = self.level(file, replicas)  # another replica may have got it
            last = appends.last(wanted.writer)
        if last is None or last.sequence < wanted.sequence:
            if operation.retry and appends.forgot and last is None:
                raise Refused(UNKNOWN, "too many others have appended since to tell whether it was carried out",
                              file.length)
            return None
        if last.sequence > wanted.sequence:
            raise Refused(UNKNOWN, f"the writer has gone on to append {last.sequence}", file.length)
        if file.ordering.level_epoch != replicas.epoch:
            self.level(file, replicas)
        return last

    # ------------------------------------------------------------------ the append itself

    def _append(self, file: StoredFile, replicas: ReplicaSet, operation: AppendOperation, records: list[Record],
                payload: Payload, without: frozenset[str] = frozenset(), known: int | None = None) -> list[str]:
        """Append the payload here and on the others, save `without`; returns who had to leave the set. The digest of
        its sums is to be `known`, if that is given.

        Raises Refused (nothing is visible here), NoSpace, StorageFailed, StaleEpoch, ConnectionLost.
        """
        writer = AppendWriter(file)
        targets = [replica for replica in replicas.others if replica.dataserver_id not in without]
        relayed = AppendOperation(
            file_id=operation.file_id, inode=operation.inode, path=operation.path, chunk_size=operation.chunk_size,
            offset=writer.offset, length=operation.length, epoch=replicas.epoch,
            records=[record.message() for record in records])
        relay = Relay(relayed, targets, self._connections, self._door, writer.segments)
        replicas, failed = self.replicate(
            file, replicas, payload, writer, relay, writer.offset + operation.length, known=known,
            note=lambda epoch: note(file, records, epoch), call_off=lambda: cut(file))
        if not without:
            file.ordering.level_epoch = replicas.epoch
        return failed

    def replicate(self, file: StoredFile, replicas: ReplicaSet, payload: Payload, writer: Writer, relay: Relay,
                  size: int, *, note: Callable[[int], None] = lambda epoch: None,
                  call_off: Callable[[], None] = lambda: None,
                  known: int | None = None) -> tuple[ReplicaSet, list[str]]:
        """Carry out a change of `file`, to `size` bytes, here and on the replicas that `relay` leads to. Returns the
        set that has it, and who had to leave for that. `note` is done before any of them commits, `call_off` takes
        that back.

        Raises as `follow`.
        """
        committed = False
        try:
            for piece in payload.pieces():
                relay.send(piece)
                writer.write(piece)
            writer.prepare()
            if known not in (None, writer.digest):
                raise Refused(IO_ERROR, "bytes taken over from another replica differ from the sums it has of them, "
                              "or begin otherwise there", file.length)
            relay.prepare()
            if relay.behind:
                relay.abort()
                writer.abort()
                call_off()
                self.level(file, replicas)
                raise Refused(BUSY, "the replicas had to be made level: send the change again", file.length)
            failed = list(relay.failed)
            if failed:
                replicas = self.office.drop(file, replicas, failed, relay.full, size)
            note(replicas.epoch)
            relay.failed = []
            self.office.require_lease(file)
            relay.commit(writer.digest)
            if relay.failed:
                failed += relay.failed
                replicas = self.office.drop(file, replicas, relay.failed)
            writer.commit()
            committed = True
        finally:
            if not committed:
                relay.abort()
                writer.abort()
                call_off()
        return replicas, list(dict.fromkeys(failed))

    def _reply(self, file: StoredFile, operation: AppendOperation, offset: int, failed: Iterable[str]) -> DataReply:
        reply = DataReply(status=OK, file_size=file.length, offset=offset, failed_replicas=failed)
        replicas = file.ordering.replicas
        if replicas is not None:
            reply.epoch = replicas.epoch
            if replicas.epoch != operation.epoch:
                reply.replicas.extend(replicas.others)
        return reply

    # ------------------------------------------------------------------ making replicas level

    def _catch_up(self, file: StoredFile, replicas: ReplicaSet, peer: Peer) -> bool:
        """Give a replica the bytes it lacks; whether it has them all now. Raises StaleEpoch."""
        if file.length - peer.length > LEVEL_BYTES:
            return False
        return self._peers.push(peer, file, replicas.epoch)

    def _adopt(self, file: StoredFile, replicas: ReplicaSet, ahead: list[Peer]) -> ReplicaSet:
        """Append what one of `ahead` has beyond this replica: an append whose primary died before it committed here.
        Raises Refused, also if none of them has it undamaged."""
        without = frozenset(peer.id for peer in ahead)
        for left, source in reversed([*enumerate(sorted(ahead, key=lambda peer: -peer.length))]):
            try:
                return self._take_over(file, replicas, source, without)
            except Refused as refusal:
                if refusal.status != IO_ERROR or not left:
                    raise
                log.error("%s: dataserver %s: %s", file.file_id, source.id, refusal)
        return replicas

    def _take_over(self, file: StoredFile, replicas: ReplicaSet, source: Peer,
                   without: frozenset[str]) -> ReplicaSet:
        if source.length - file.length > LEVEL_BYTES:
            self.office.step_down(file, replicas, StorageFailed(
                f"{file.file_id}: this replica has {file.length} bytes, {source.id} has {source.length}"))
        log.info("%s: taking over bytes %d to %d from dataserver %s", file.file_id, file.length, source.length,
                 source.id)
        length = source.length - file.length
        records = [record for record in source.records if record.end <= source.length
                   and record.end > file.length]
        operation = AppendOperation(file_id=file.file_id, inode=file.inode, path=file.path,
                                    chunk_size=file.chunk_size, length=length)
        with self._peers.reading(source, file) as (payload, known):
            try:
                self._append(file, replicas, operation, records, payload, without, known)
            except (StorageFailed, NoSpace) as error:
                self.office.step_down(file, replicas, error, source.length)
        self._store.grown.note(file)
        return file.ordering.replicas or replicas
