"""Who may order the changes of a file, and what of them needs the nameserver: its set of replicas, its versions.

Replicas that do not hold a change are taken out of the set by the nameserver before it is acknowledged, at an epoch
that it counts up: a primary that was deposed meanwhile is told so there or by the replicas, and acknowledges nothing.
"""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from speedwell.fs.dataserver.disk.disk_errors import disk_error
from speedwell.fs.dataserver.disk.durability import Policy
from speedwell.fs.dataserver.disk.layout import hole_bytes
from speedwell.fs.dataserver.disk.stored_file import StoredFile
from speedwell.fs.dataserver.nameserver_link import NameserverLink
from speedwell.fs.dataserver.replication.lease import Lease
from speedwell.fs.dataserver.replication.one_change import Refused
from speedwell.fs.dataserver.replication.ordering import ReplicaSet
from speedwell.fs.dataserver.replication.peers import Peers
from speedwell.fs.errors import (
    NameserverUnavailable,
    NoReplicaAvailable,
    NoSpace,
    NoSuchFile,
    SpeedwellError,
    StaleEpoch,
    StaleFile,
    StorageFailed,
    Superseded,
    TooFewReplicas,
)
from speedwell.fs.proto.speedwell_pb2 import (
    FENCED,
    NO_SPACE,
    NOT_FOUND,
    STALE,
    STALE_EPOCH,
    TOO_FEW_REPLICAS,
    Attributes,
    ChangeReplicasReply,
    ChangeReplicasRequest,
    Replica,
    Status,
)
from speedwell.fs.units import counted

log = logging.getLogger(__name__)

SUSPECT_SECONDS = 1.0


@dataclass(frozen=True)
class Authority:
    """What makes this dataserver a primary: its name, its lease, and who decides on the sets."""

    dataserver_id: str
    lease: Lease
    link: NameserverLink
    policy: Policy = field(default_factory=Policy)


class Office:
    """What this dataserver does as the primary of files. Thread-safe; who calls a method has the file's turn."""

    def __init__(self, authority: Authority, peers: Peers) -> None:
        self.authority = authority
        self._peers = peers

    def take_charge(self, file: StoredFile, epoch: int, others: Iterable[Replica], *, min_replicas: int = 0,
                    leaving: Collection[str] = ()) -> ReplicaSet:
        """The set that is to carry out the next change of `file`; a client knows that of `epoch`, with the `others`
        beside this server. Those `leaving` need not answer.

        Raises Refused: others may order the file's changes, its newest version is another one, or the set has not so
        many replicas.
        """
        self.require_lease(file)
        if file.ordering.successor is not None:
            raise Refused(STALE, "a new version was made from this one", file.length)
        replicas = self.replica_set(file, epoch, others, leaving)
        if 1 + len(replicas.others) < min_replicas:
            raise Refused(TOO_FEW_REPLICAS, f"the file has {counted(1 + len(replicas.others), 'replica')}, a "
                          f"change needs {min_replicas} (--min-replicas)", file.length)
        appends = file.ordering.log(file.length)
        if not appends.closed:
            return replicas
        # From the new epoch on nobody publishes a version that was made before it.
        reply = self._ask_for(file, replicas, ChangeReplicasRequest(new_epoch=True), superseded=STALE)
        replicas = self._take_office(file, reply)
        try:
            appends.close(False)
        except OSError as error:
            raise disk_error(error, f"cannot append to {file.file_id}") from None
        return replicas

    def publish(self, base: StoredFile, replicas: ReplicaSet, version: StoredFile, *, session: int,
                generation: int) -> Attributes:
        """Have the nameserver make `version` the newest content of the file in place of `base`, which takes no append
        from now on. The client wrote under locks of `session`, 0 for none.

        Raises Refused, QuotaExceeded, LocksLost.
        """
        base.ordering.pinned = True
        try:
            base.ordering.log(base.length).close()
            attributes = self.authority.link.publish(
                base.inode, base.file_id, base.length, version.file_id, version.length, replicas.epoch,
                session=session, generation=generation, hole_bytes=hole_bytes(version.runs, version.length))
            base.ordering.successor = attributes
            return attributes
        except OSError as error:
            raise disk_error(error, f"cannot replace {base.file_id}") from None
        except NameserverUnavailable as error:
            raise Refused(FENCED, f"the new version may have been published: {error}", base.length) from None
        except NoSuchFile as error:
            raise Refused(NOT_FOUND, str(error), base.length) from None
        except Superseded as error:
            raise Refused(STALE, str(error), base.length) from None
        except StaleEpoch as error:
            base.ordering.replicas = None
            raise Refused(STALE_EPOCH, str(error), base.length) from None

    def leave(self, file: StoredFile, replicas: ReplicaSet, successor: str) -> None:
        """Leave the set in favour of another dataserver. Raises Refused."""
        self._ask_for(file, replicas, ChangeReplicasRequest(remove=[self.authority.dataserver_id], add=[successor]))
        file.ordering.replicas = None

    def drop(self, file: StoredFile, replicas: ReplicaSet, failed: Iterable[str], full: Iterable[str] = (),
             size: int = 0) -> ReplicaSet:
        """Have the nameserver take replicas out of the set, and replace those of them that are `full`, for a file of
        `size` bytes. Raises Refused."""
        return self._take_office(file, self._ask_for(file, replicas, ChangeReplicasRequest(
            remove=dict.fromkeys(failed), full=dict.fromkeys(full), size=size)))

    def change(self, file: StoredFile, replicas: ReplicaSet, *, remove: Iterable[str] = (),
               add: Iterable[str] = ()) -> ReplicaSet:
        """Have the nameserver change the set; the epoch grows here too. Raises Refused."""
        return self._take_office(file, self._ask_for(file, replicas, ChangeReplicasRequest(remove=remove, add=add)))

    def require_lease(self, file: StoredFile) -> None:
        if not self.authority.lease.held:
            raise Refused(FENCED, f"dataserver {self.authority.dataserver_id} has not heard from the nameserver "
                          "lately and orders no appends", file.length)

    def replica_set(self, file: StoredFile, epoch: int, others: Iterable[Replica],
                    leaving: Collection[str] = ()) -> ReplicaSet:
        """The newest set that this server knows. Raises Refused if it is newer than the client's and another's."""
        ordering = file.ordering
        newest = ordering.log(file.length).epoch
        known = ordering.replicas
        if known is not None and known.epoch >= max(newest, epoch):
            return known
        if epoch < newest:
            raise Refused(STALE_EPOCH, f"the file's replicas are at epoch {newest}, the change has {epoch}",
                          file.length)
        replicas = ordering.replicas = ReplicaSet(epoch, tuple(others))
        # Those that the nameserver took for dead get a second to show that they are not: an append would wait longer.
        dead = [replica.dataserver_id for replica in replicas.others
                if not (replica.alive or replica.dataserver_id in leaving
                        or self._peers.ask(replica, file, replicas.epoch, SUSPECT_SECONDS).reached)]
        return self.drop(file, replicas, dead) if dead else replicas

    def step_down(self, file: StoredFile, replicas: ReplicaSet, error: StorageFailed | NoSpace,
                  size: int = 0) -> NoReturn:
        """Leave the set because the own disk failed, or has no room for `size` bytes of the file; if nobody else can
        have it, say so. Raises Refused or `error`."""
        log.error("change of %s failed: %s", file.file_id, error)
        own, is_full = [self.authority.dataserver_id], isinstance(error, NoSpace)
        if replicas.others or is_full:
            try:
                self.authority.link.change_replicas(file.inode, file.file_id, replicas.epoch, ChangeReplicasRequest(
                    remove=own, full=own if is_full else (), size=size))
            except (NoReplicaAvailable, NoSpace):
                raise error from None
            except TooFewReplicas as refusal:
                raise Refused(TOO_FEW_REPLICAS, f"{error}; {refusal}", file.length) from None
            except SpeedwellError as failure:
                log.warning("%s: cannot step down as the primary: %s", file.file_id, failure)
            file.ordering.replicas = None
            raise Refused(STALE_EPOCH, str(error), file.length)
        raise error

    # ------------------------------------------------------------------ private

    def _ask_for(self, file: StoredFile, replicas: ReplicaSet, change: ChangeReplicasRequest, *,
                 superseded: Status = NOT_FOUND) -> ChangeReplicasReply:
        ordering = file.ordering
        try:
            reply = self.authority.link.change_replicas(file.inode, file.file_id, replicas.epoch, change)
            ordering.log(file.length).raise_epoch(reply.epoch)
        except NameserverUnavailable as error:
            raise Refused(FENCED, f"the file's replicas cannot be changed now: {error}", file.length) from None
        except NoSuchFile as error:
            raise Refused(NOT_FOUND, str(error), file.length) from None
        except StaleFile as error:
            raise Refused(superseded, str(error), file.length) from None
        except OSError as error:
            raise disk_error(error, f"cannot append to {file.file_id}") from None
        except TooFewReplicas as error:
            raise Refused(TOO_FEW_REPLICAS, str(error), file.length) from None
        except NoSpace as error:
            raise Refused(NO_SPACE, str(error), file.length) from None
        except SpeedwellError as error:
            ordering.replicas = None
            raise Refused(STALE_EPOCH, str(error), file.length) from None
        return reply

    def _take_office(self, file: StoredFile, reply: ChangeReplicasReply) -> ReplicaSet:
        own = self.authority.dataserver_id
        if not reply.replicas or reply.replicas[0].dataserver_id != own:
            file.ordering.replicas = None
            raise Refused(STALE_EPOCH, f"dataserver {own} is not the file's primary any more", file.length)
        replicas = file.ordering.replicas = ReplicaSet(reply.epoch, tuple(reply.replicas[1:]))
        return replicas
