"""A store kept by etcd for several nameservers, of which one leads and writes.

Every member keeps a mirror of etcd's keys in a store of its own, so reading costs what the mirror's store
costs. A follower feeds its mirror from a watch. The leader writes to etcd first and then to its mirror.

Leadership is a key on a lease. What keeps an old leader from writing is not the lease but the `turn` key: every
batch is one etcd transaction that asks for the turn to be as this leader left it, and changes it. A new leader
changes it first of all. It also tells, after an answer was lost, whether the batch had been carried out, so a batch
is sent again without doing it twice.
"""

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Sequence

from speedwell.fs.errors import NoSpace, NotLeader, StorageFailed
from speedwell.fs.etcd_client import EtcdClient, Watching
from speedwell.fs.nameserver.backup.copy_holders import FORCE_FLAG
from speedwell.fs.proto import etcd_pb2 as pb
from speedwell.fs.store.contract import IDENTITY_KEY, Batch, Store, end_of_prefix
from speedwell.fs.store.refilling import Mirror, Refilling
from speedwell.fs.store.transactions import absent, fetch, leased, operation, unchanged

log = logging.getLogger(__name__)

LEASE_SECONDS = 2
"""etcd grants no shorter one with its default timing."""

PAGE = 2000
COMPACT_EVERY = 20_000
"""Revisions between compactions; members further behind load everything anew."""

DATA, TURN, LEADER, MAP = b"data/", b"turn", b"leader", b"map"
MIRROR_DATA, MIRROR_STATE = b"d", b"s"
MIRROR_AHEAD = b"a"     # what this member wrote of others' records, by revision, until the mirror comes to it


class ReplicatedStore:
    """See `speedwell.fs.store.contract.Store`; all of it raises NotLeader on a member that does not lead.

    `address` is what others are told of this member. `mirror` is closed with the store.
    """

    _blocks = 1

    def __init__(self, etcd: EtcdClient, mirror: Store, prefix: str, address: str) -> None:
        self._etcd = etcd
        self._mirror = mirror
        self._prefix = prefix.encode().rstrip(b"/") + b"/"
        self._end = end_of_prefix(self._prefix) or b"\0"
        self.address = address
        self.refills = False        # whether an etcd without the namespace gets what the mirror has
        self._cluster, self._revision = self._mirror_state()
        self._lease = 0
        self._leads_until = 0.0
        self._turn_revision = 0
        self._compacted = 0
        self._batches = 0
        self._member = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._watching: Watching | None = None
        self._renewing: threading.Thread | None = None

    # ------------------------------------------------------------------ the leader's reading and writing

    def get(self, key: bytes) -> bytes | None:
        self._require_leadership()
        return self._mirror.get(MIRROR_DATA + key)

    def get_all(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        self._require_leadership()
        return self._mirror.get_all([MIRROR_DATA + key for key in keys])

    def iterate(self, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        self._require_leadership()
        last = MIRROR_DATA + stop if stop is not None else end_of_prefix(MIRROR_DATA)
        return ((key[len(MIRROR_DATA):], value)
                for key, value in self._mirror.iterate(MIRROR_DATA + start, last))

    def write(self, batch: Batch) -> None:
        with self._lock:
            self._require_leadership()
            self._batches += 1
            token = f"{self._member}.{self._batches}".encode()
            try:
                self._turn_revision = self._take_turn(token, batch)
                self._apply(batch, self._turn_revision)
            except BaseException as error:
                # Carried out or not, mirrored or not: only who reads etcd again knows.
                self._leads_until = 0.0
                if isinstance(error, (StorageFailed, NoSpace)):
                    log.error("another nameserver is to lead: %s", error)
                    raise NotLeader(f"this nameserver does not lead any more: {error}") from None
                raise
            self._compact()

    def sync(self) -> None:
        """etcd has forced what it has answered to the disks of most of its members."""
        self._require_leadership()

    def close(self) -> None:
        """Give leadership back and close the mirror. Safe to call again."""
        self.stop()
        self.resign()
        self._mirror.close()
        self._etcd.close()

    # ------------------------------------------------------------------ leadership

    @property
    def leads(self) -> bool:
        """Whether this member may answer for the store now."""
        return time.monotonic() < self._leads_until

    def leader(self) -> str:
        """The address of the member that leads, empty if none does. Raises StorageFailed."""
        found = self._etcd.range(self._key(LEADER), b"").kvs
        return found[0].value.decode() if found else ""

    def follow_until_elected(self) -> bool:
        """Keep the mirror up to date; returns True once this member leads, False after `stop`.

        An etcd that does not answer is waited for.
        """
        while not self._stopped.is_set():
            try:
                self._follow()
                return not self._stopped.is_set()
            except StorageFailed as error:
                if self._stopped.is_set():
                    return False
                log.warning("%s", error)
                self._stopped.wait(0.2)
        return False

    def wait_until_deposed(self) -> None:
        """Returns when this member no longer leads, or after `stop`."""
        while self.leads and not self._stopped.wait(0.05):
            pass

    def stop(self) -> None:
        """Make the two methods above return."""
        self._stopped.set()
        if self._watching is not None:
            self._watching.cancel()

    def resign(self) -> None:
        """Let another member lead at once, not after the lease."""
        lease, self._lease, self._leads_until = self._lease, 0, 0.0
        if self._renewing is not None:
            self._renewing.join()
            self._renewing = None
        if lease:
            try:
                self._etcd.revoke_lease(lease)
            except StorageFailed as error:
                log.warning("leadership ends with its lease: %s", error)

    def _follow(self) -> None:
        self.resign()
        self._check_cluster()
        if self._etcd.range(self._key(MAP), b"").kvs:
            raise StorageFailed("several nameservers share this namespace: start this one with --shared too")
        if self._campaign():
            return
        self._watching = self._etcd.watch(self._prefix, self._end, self._revision + 1)
        for answer in self._watching:
            if self._stopped.is_set():
                return
            if answer.canceled:
                if not answer.compact_revision:
                    raise StorageFailed("etcd ended the watch")
                self._load()
                return self._follow()
            left = self._apply_events(answer)
            if (left or (answer.created and not self.leader())) and self._campaign():
                return
        if not self._stopped.is_set():
            raise StorageFailed("etcd ended the watch")

    def _campaign(self) -> bool:
        """Try to lead. True if this member does now, with a mirror that holds everything."""
        began = time.monotonic()    # no later than the lease: nobody else leads as long as this member believes it
        lease, granted_seconds = self._etcd.grant_lease(LEASE_SECONDS)
        token = f"{self._member}.{lease}".encode()
        turn = self._key(TURN)
        answer = self._etcd.transaction(pb.TxnRequest(
            compare=[absent(self._key(LEADER)), absent(self._key(MAP))],
            success=[leased(self._key(LEADER), self.address.encode(), lease), operation(turn, token)],
            failure=[fetch(turn)]))
        revision = answer.header.revision
        if not answer.succeeded:
            found = answer.responses[0].response_range.kvs
            if not found or found[0].value != token:
                self._etcd.revoke_lease(lease)
                return False
            revision = found[0].mod_revision  # it was carried out, only the answer was lost
        self._catch_up(revision)
        self._lease, self._turn_revision, self._compacted = lease, revision, revision
        self._leads_until = began + granted_seconds
        self._renewing = threading.Thread(target=self._renew, args=(lease, granted_seconds), daemon=True,
                                          name="leadership")
        self._renewing.start()
        log.info("leads from revision %d on", revision)
        return True

    def _renew(self, lease: int, granted_seconds: float) -> None:
        while self._lease == lease and not self._stopped.wait(granted_seconds / 8):
            began = time.monotonic()
            try:
                seconds = self._etcd.renew_lease(lease)
                if seconds and not self._may_go_on():
                    continue
            except StorageFailed as error:
                log.warning("%s", error)
                continue
            with self._lock:
                if self._lease == lease and (self.leads or seconds == 0):
                    self._leads_until = began + seconds
            if seconds == 0 or not self.leads:
                return

    def _may_go_on(self) -> bool:
        """Whether a renewed lease counts. Raises StorageFailed."""
        return True

    def _require_leadership(self) -> None:
        if self._stopped.is_set():
            raise StorageFailed("the store is closed")
        if not self.leads:
            raise NotLeader("this nameserver does not lead: ask the others")

    # ------------------------------------------------------------------ etcd

    def _take_turn(self, token: bytes, batch: Batch) -> int:
        """One batch as one transaction; returns its revision. Raises NotLeader, StorageFailed."""
        changes = [operation(self._key(DATA + key), value) for key, value in batch.changes.items()]
        turn = self._key(TURN)
        answer = self._etcd.transaction(pb.TxnRequest(
            compare=[unchanged(turn, self._turn_revision)], success=[*changes, operation(turn, token)],
            failure=[fetch(turn)]))
        if answer.succeeded:
            return answer.header.revision
        found = answer.responses[0].response_range.kvs
        if found and found[0].value == token:
            return found[0].mod_revision
        raise NotLeader("another nameserver leads now")

    def _compact(self) -> None:
        """The batch is written whether or not etcd forgets older ones now: a failure is tried again with the next."""
        if self._turn_revision - self._compacted < COMPACT_EVERY:
            return
        try:
            self._etcd.compact(self._turn_revision - COMPACT_EVERY // 2)
            self._compacted = self._turn_revision
        except StorageFailed as error:
            log.warning("etcd keeps old revisions for now: %s", error)

    def _catch_up(self, revision: int) -> None:
        """Bring the mirror to `revision`, which etcd has reached."""
        if self._revision >= revision:
            return
        watching = self._etcd.watch(self._prefix, self._end, self._revision + 1)
        try:
            for answer in watching:
                if answer.canceled:
                    self._load()
                    return
                self._apply_events(answer)
                if self._revision >= revision:
                    return
        finally:
            watching.cancel()
        raise StorageFailed("etcd ended the watch")

    def _check_cluster(self) -> None:
        """Load everything if the mirror is of another cluster, or of this one before it was restored. Raises
        StorageFailed if it is of another namespace: it may be all that is left of that."""
        own = self._mirror.get(MIRROR_DATA + IDENTITY_KEY)
        found = self._etcd.range(self._key(DATA + IDENTITY_KEY), b"")
        if not found.kvs:
            self._refill(own)
            found = self._etcd.range(self._key(DATA + IDENTITY_KEY), b"")
        header, cluster = found.header, self._refilling().cluster(found.header)
        there = found.kvs[0].value if found.kvs else None
        if own is not None and there != own:
            raise StorageFailed(
                f"this nameserver's directory has the namespace {own.hex()}, and etcd at "
                f"{','.join(self._etcd.endpoints)} has {there.hex() if there else 'none'} below "
                f"{self._prefix.decode()}: name the right --etcd and --etcd-prefix, or restore etcd's data; if that "
                f"is lost for good, start all nameservers with {FORCE_FLAG}; for another namespace, an empty "
                "--directory")
        if cluster != self._cluster or header.revision < self._revision:
            self._cluster = cluster
            self._load()

    def _refill(self, own: bytes | None) -> None:
        """If an operator said so, give an etcd without the namespace what the furthest mirror has. Raises
        StorageFailed, also where this one must not begin a namespace."""
        refilling = self._refilling()
        if self.refills and own is not None and self._cluster:
            refilling.refill(Mirror(self._revision, self._cluster, own), self._newest(), self._blocks)
        elif self.refills:
            raise StorageFailed(f"{FORCE_FLAG}: neither etcd nor this nameserver's directory has a namespace; a "
                                "nameserver that has it is waited for")
        else:
            refilling.refuse_meanwhile()

    def _refilling(self) -> Refilling:
        return Refilling(self._etcd, self._prefix, self._key(DATA), self.address, self._stopped)

    def _newest(self) -> Iterator[tuple[bytes, bytes]]:
        """All that this member knows of the records."""
        later = self._later()
        for key, value in self._mirror.iterate(MIRROR_DATA, end_of_prefix(MIRROR_DATA)):
            known = later.pop(key[len(MIRROR_DATA):], value)
            if known is not None:
                yield key[len(MIRROR_DATA):], known
        yield from ((key, value) for key, value in later.items() if value is not None)

    def _later(self) -> dict[bytes, bytes | None]:
        """Changes that the mirror has not come to."""
        return {}

    def _load(self) -> None:
        """Fill the mirror anew. A crash in the middle leaves it without a state, so it is filled again."""
        self._clear_mirror()
        start, revision, more = self._prefix, 0, True
        while more:
            page = self._etcd.range(start, self._end, limit=PAGE, revision=revision)
            revision = revision or page.header.revision
            batch = Batch()
            for pair in page.kvs:
                self._mirror_change(batch, pair.key, pair.value)
            self._mirror.write(batch)
            more = page.more
            if page.kvs:
                start = page.kvs[-1].key + b"\0"
        self._write_mirror(Batch(), revision)

    def _apply_events(self, answer: pb.WatchResponse) -> bool:
        """Whether the leader's key went away."""
        batch, left = Batch(), False
        for event in answer.events:
            gone = event.type == pb.Event.DELETE
            if event.kv.key == self._key(LEADER):
                left = gone
            self._mirror_change(batch, event.kv.key, None if gone else event.kv.value)
        if answer.events:
            self._write_mirror(batch, answer.events[-1].kv.mod_revision)
        return left

    # ------------------------------------------------------------------ the mirror

    def _key(self, name: bytes) -> bytes:
        return self._prefix + name

    def _apply(self, batch: Batch, revision: int) -> None:
        mirrored = Batch()
        for key, value in batch.changes.items():
            mirrored.changes[MIRROR_DATA + key] = value
        self._write_mirror(mirrored, revision)

    def _mirror_change(self, batch: Batch, key: bytes, value: bytes | None) -> None:
        prefix = self._key(DATA)
        if key.startswith(prefix):
            batch.changes[MIRROR_DATA + key[len(prefix):]] = value

    def _write_mirror(self, batch: Batch, revision: int) -> None:
        batch.put(MIRROR_STATE, b"%d %d" % (self._cluster, revision))
        self._mirror.write(batch)
        self._revision = revision

    def _clear_mirror(self) -> None:
        batch = Batch()
        batch.delete(MIRROR_STATE)
        for key, _ in self._mirror.iterate(MIRROR_AHEAD):
            batch.delete(key)
            if len(batch.changes) >= PAGE:
                self._mirror.write(batch)
                batch = Batch()
        self._mirror.write(batch)

    def _mirror_state(self) -> tuple[int, int]:
        state = self._mirror.get(MIRROR_STATE)
        if state is None:
            return 0, 0
        cluster, revision = state.split()
        return int(cluster), int(revision)
