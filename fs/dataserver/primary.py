"""Ordering the appends of a file, as its primary.

An append is acknowledged when every replica of the set holds it. Replicas that do not are taken out of the set
by the nameserver first, at an epoch that it counts up: a primary that was deposed meanwhile is told so there or
by the replicas, and acknowledges nothing. Replicas that differ in length are made level before anything is ordered.
After PacificA (Lin et al., 2008): the primary commits last, so a reader never sees what one failure takes back.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from fs.channel import Channel
from fs.connections import ConnectionPool
from fs.dataserver.append_log import Record
from fs.dataserver.append_writer import AppendWriter
from fs.dataserver.disk import disk_error
from fs.dataserver.lease import Lease
from fs.dataserver.nameserver_link import NameserverLink
from fs.dataserver.ordering import ReplicaSet
from fs.dataserver.payload import Payload
from fs.dataserver.peers import Peer, Peers
from fs.dataserver.relay import Relay
from fs.dataserver.store import FileStore
from fs.dataserver.stored_file import StoredFile
from fs.dataserver.turns import TURN_SECONDS, Refused, cut, note, require_unsealed, turn
from fs.errors import (
    NameserverUnavailable,
    NoReplicaAvailable,
    NoSuchFile,
    SpeedwellError,
    StaleFile,
    StorageFailed,
)
from fs.proto.speedwell_pb2 import (
    BUSY,
    FENCED,
    NOT_FOUND,
    OK,
    OUT_OF_DATE,
    STALE_EPOCH,
    UNKNOWN,
    AppendOperation,
    ChangeReplicasReply,
    DataReply,
    JoinOperation,
    LengthOperation,
)

log = logging.getLogger(__name__)

LEVEL_BYTES = 256 << 20
"""A replica that lacks more is not caught up while appends wait: it leaves the set and is made anew."""

PUSHED_BYTES = 32 << 20
"""What a dataserver that joins may lack; appends wait while it gets it."""

SUSPECT_SECONDS = 1.0


@dataclass(frozen=True)
class Authority:
    """What makes this dataserver a primary: its name, its lease, and who decides on the sets."""

    dataserver_id: str
    lease: Lease
    link: NameserverLink


class Primary:
    """Orders the appends of the files whose primary this dataserver is. Thread-safe."""

    def __init__(self, store: FileStore, connections: ConnectionPool, authority: Authority, sync: bool) -> None:
        self._store = store
        self._connections = connections
        self._authority = authority
        self._sync = sync
        self._peers = Peers(connections)

    def order(self, channel: Channel, operation: AppendOperation, payload: Payload) -> DataReply:
        """Carry out a client's append. Raises Refused, NoSpace, NoSuchFile, StorageFailed, StaleEpoch."""
        with self._store.opened_for_append(operation.file_id, operation.inode, operation.path,
                                           operation.chunk_size, operation.length) as file, \
                turn(file, operation.epoch, channel, TURN_SECONDS):
            self._require_lease(file)
            require_unsealed(file)
            replicas = self._replica_set(file, operation)
            wanted = operation.records[0]
            done = self._done_before(file, replicas, operation)
            if done is not None:
                payload.discard()
                return self._reply(file, operation, done.offset, ())
            if file.length < operation.known_size:
                replicas = self.level(file, replicas)
            if file.length < operation.known_size:
                raise Refused(OUT_OF_DATE, f"{operation.known_size} bytes are committed, this replica has only "
                              f"{file.length}", file.length)
            record = Record(wanted.writer, wanted.sequence, file.length, operation.length)
            try:
                failed = self._append(file, replicas, operation, [record], payload)
            except StorageFailed as error:
                self._step_down(file, replicas, error)
            self._store.note_growth(file)
            return self._reply(file, operation, record.offset, failed)

    def join(self, channel: Channel, operation: JoinOperation) -> DataReply:
        """Bring a dataserver that copied the file up to date, and have it join the set while nothing is appended.

        Raises Refused, NoSuchFile, StaleEpoch, StorageFailed.
        """
        copy, own = operation.copy, self._authority.dataserver_id
        with self._store.opened_for_append(copy.file_id, copy.inode, b"", copy.chunk_size,
                                           operation.length) as file, \
                turn(file, copy.epoch, channel, TURN_SECONDS):
            self._require_lease(file)
            require_unsealed(file)
            replicas = self._replica_set(file, AppendOperation(epoch=copy.epoch, relay=copy.replicas[1:]))
            file.ordering.pinned = True
            peer = Peer(operation.candidate, True, operation.length)
            if not operation.length <= file.length <= operation.length + PUSHED_BYTES:
                raise Refused(OUT_OF_DATE, f"the file has {file.length} bytes", file.length)
            replicas = self.level(file, replicas)
            if not self._peers.push(peer, file, replicas.epoch):
                raise Refused(OUT_OF_DATE, "the last bytes could not be passed on", file.length)
            if own not in copy.replaces:
                replicas = self.change(file, replicas, remove=copy.replaces, add=[peer.id])
            else:
                self._hand_over(file, replicas, peer.id)
            return DataReply(status=OK, file_size=file.length, epoch=replicas.epoch)

    def _hand_over(self, file: StoredFile, replicas: ReplicaSet, successor: str) -> None:
        """Leave the set in favour of another dataserver. Raises Refused."""
        self._ask_for(file, replicas, remove=[self._authority.dataserver_id], add=[successor])
        file.ordering.replicas = None

    def current_length(self, channel: Channel, operation: LengthOperation) -> int:
        """The length that has every append acknowledged so far: nobody else is the primary.

        Raises Refused, NoSuchFile, StaleEpoch, StorageFailed.
        """
        with self._store.opened(operation.file_id) as file:
            self._require_lease(file)
            term, ordering = self._authority.lease.term, file.ordering
            if ordering.replicas is None or ordering.confirmed != (term, ordering.replicas.epoch) \
                    or ordering.replicas.epoch < operation.epoch:
                with turn(file, operation.epoch, channel, TURN_SECONDS):
                    replicas = self._replica_set(file, AppendOperation(epoch=operation.epoch,
                                                                       relay=operation.others))
                    replicas = self.change(file, replicas)  # no change: the nameserver confirms the epoch
                    if ordering.level_epoch != replicas.epoch:
                        replicas = self.level(file, replicas)
                    ordering.confirmed = term, replicas.epoch
            length = file.length
            self._require_lease(file)
            if self._authority.lease.term != term:
                raise Refused(FENCED, "the lease was lost and got again", file.length)
            return length

    def level(self, file: StoredFile, replicas: ReplicaSet) -> ReplicaSet:
        """Have all replicas hold the same bytes, the most that any has; who cannot be reached leaves the set.

        The caller has the file's turn. Raises Refused, StaleEpoch.
        """
        while True:
            peers = [self._peers.ask(replica, file, replicas.epoch) for replica in replicas.others]
            failed = [peer.id for peer in peers if not peer.reached or not self._catch_up(file, replicas, peer)]
            if failed:
                replicas = self.drop(file, replicas, failed)
            ahead = [peer for peer in peers if peer.length > file.length and peer.id not in failed]
            if not ahead:
                file.ordering.level_epoch = replicas.epoch
                return replicas
            replicas = self._adopt(file, replicas, ahead)

    def drop(self, file: StoredFile, replicas: ReplicaSet, failed: Iterable[str]) -> ReplicaSet:
        """Have the nameserver take replicas out of the set. Raises Refused."""
        return self.change(file, replicas, remove=list(dict.fromkeys(failed)))

    def change(self, file: StoredFile, replicas: ReplicaSet, *, remove: Iterable[str] = (),
               add: Iterable[str] = ()) -> ReplicaSet:
        """Have the nameserver change the set; the epoch grows here too. Raises Refused."""
        return self._take_office(file, self._ask_for(file, replicas, remove=remove, add=add))

    def _ask_for(self, file: StoredFile, replicas: ReplicaSet, *, remove: Iterable[str],
                 add: Iterable[str]) -> ChangeReplicasReply:
        ordering = file.ordering
        try:
            reply = self._authority.link.change_replicas(file.inode, file.file_id, replicas.epoch,
                                                         remove=list(remove), add=list(add))
            ordering.log(file.length).raise_epoch(reply.epoch)
        except NameserverUnavailable as error:
            raise Refused(FENCED, f"the file's replicas cannot be changed now: {error}", file.length) from None
        except (NoSuchFile, StaleFile) as error:
            raise Refused(NOT_FOUND, str(error), file.length) from None
        except OSError as error:
            raise disk_error(error, f"cannot append to {file.file_id}") from None
        except SpeedwellError as error:
            ordering.replicas = None
            raise Refused(STALE_EPOCH, str(error), file.length) from None
        return reply

    # ------------------------------------------------------------------ who may

    def _require_lease(self, file: StoredFile) -> None:
        if not self._authority.lease.held:
            raise Refused(FENCED, f"dataserver {self._authority.dataserver_id} has not heard from the nameserver "
                          "lately and orders no appends", file.length)

    def _replica_set(self, file: StoredFile, operation: AppendOperation) -> ReplicaSet:
        """The newest set that this server knows. Raises Refused if it is newer than the client's and another's."""
        ordering = file.ordering
        newest = ordering.log(file.length).epoch
        known = ordering.replicas
        if known is not None and known.epoch >= max(newest, operation.epoch):
            return known
        if operation.epoch < newest:
            raise Refused(STALE_EPOCH, f"the file's replicas are at epoch {newest}, the append has "
                          f"{operation.epoch}", file.length)
        replicas = ordering.replicas = ReplicaSet(operation.epoch, tuple(operation.relay))
        # Those that the nameserver took for dead get a second to show that they are not: an append would wait longer.
        dead = [replica.dataserver_id for replica in replicas.others
                if not replica.alive and not self._peers.ask(replica, file, replicas.epoch, SUSPECT_SECONDS).reached]
        return self.drop(file, replicas, dead) if dead else replicas

    def _take_office(self, file: StoredFile, reply: ChangeReplicasReply) -> ReplicaSet:
        own = self._authority.dataserver_id
        if not reply.replicas or reply.replicas[0].dataserver_id != own:
            file.ordering.replicas = None
            raise Refused(STALE_EPOCH, f"dataserver {own} is not the file's primary any more", file.length)
        replicas = file.ordering.replicas = ReplicaSet(reply.epoch, tuple(reply.replicas[1:]))
        return replicas

    def _step_down(self, file: StoredFile, replicas: ReplicaSet, error: StorageFailed) -> None:
        """Leave the set because the own disk failed; if nobody else holds the file, say so. Always raises."""
        log.error("append to %s failed: %s", file.file_id, error)
        if replicas.others:
            try:
                self._authority.link.change_replicas(file.inode, file.file_id, replicas.epoch,
                                                     remove=[self._authority.dataserver_id])
            except NoReplicaAvailable:
                raise error from None
            except SpeedwellError as failure:
                log.warning("%s: cannot step down as the primary: %s", file.file_id, failure)
            file.ordering.replicas = None
            raise Refused(STALE_EPOCH, str(error), file.length)
        raise error

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
                payload: Payload, without: frozenset[str] = frozenset()) -> list[str]:
        """Append the payload here and on the others, save `without`; returns who had to leave the set.

        Raises Refused (nothing is visible here), NoSpace, StorageFailed, StaleEpoch, ConnectionLost.
        """
        writer = AppendWriter(file, self._sync)
        targets = [replica for replica in replicas.others if replica.dataserver_id not in without]
        relayed = self._relayed(operation, replicas, records) if targets else operation
        relay = Relay(relayed, writer.offset, targets, self._connections, writer.segments)
        committed = False
        try:
            for piece in payload.pieces():
                relay.send(piece)
                writer.write(piece)
            writer.prepare()
            relay.prepare()
            if relay.behind:
                self._call_off(file, relay, writer)
                self.level(file, replicas)
                raise Refused(BUSY, "the replicas had to be made level: send the append again", file.length)
            failed = list(relay.failed)
            if failed:
                replicas = self.drop(file, replicas, failed)
            note(file, records, replicas.epoch, self._sync)
            relay.failed = []
            self._require_lease(file)
            relay.commit()
            if relay.failed:
                failed += relay.failed
                replicas = self.drop(file, replicas, relay.failed)
            writer.commit()
            committed = True
        finally:
            if not committed:
                self._call_off(file, relay, writer)
        if not without:
            file.ordering.level_epoch = replicas.epoch
        return list(dict.fromkeys(failed))

    @staticmethod
    def _call_off(file: StoredFile, relay: Relay, writer: AppendWriter) -> None:
        relay.abort()
        writer.abort()
        cut(file)

    @staticmethod
    def _relayed(operation: AppendOperation, replicas: ReplicaSet, records: list[Record]) -> AppendOperation:
        return AppendOperation(
            file_id=operation.file_id, inode=operation.inode, path=operation.path, chunk_size=operation.chunk_size,
            length=operation.length, epoch=replicas.epoch, records=[record.message() for record in records])

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
        """Append what the first of `ahead` has beyond this replica: an append whose primary died before it
        committed here."""
        source = min(ahead, key=lambda peer: peer.length)
        if source.length - file.length > LEVEL_BYTES:
            self._step_down(file, replicas, StorageFailed(
                f"{file.file_id}: this replica has {file.length} bytes, {source.id} has {source.length}"))
        log.info("%s: taking over bytes %d to %d from dataserver %s", file.file_id, file.length, source.length,
                 source.id)
        length = source.length - file.length
        records = [record for record in source.records if record.end <= source.length
                   and record.end > file.length]
        operation = AppendOperation(file_id=file.file_id, inode=file.inode, path=file.path,
                                    chunk_size=file.chunk_size, length=length)
        with self._peers.reading(source, file, length) as payload:
            try:
                self._append(file, replicas, operation, records, payload,
                             without=frozenset(peer.id for peer in ahead))
            except StorageFailed as error:
                self._step_down(file, replicas, error)
        self._store.note_growth(file)
        return file.ordering.replicas or replicas
