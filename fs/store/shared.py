"""A store in etcd that several nameservers write to, each the records of the blocks (`speedwell.fs.slots`) it owns.

Every member keeps a mirror of everything, which a watch feeds: an owner reads its own records there, and whoever
takes a block over has all of it. Records of others are read from etcd itself.

A batch is one etcd transaction. It asks for this member's `turn` key to be as this member left it, for every record
of another owner that was read since the request began to be as it was read, and, if it writes some, for the map of
owners to be the same. It changes the `turn` of every owner whose records it writes: what these have decided meanwhile
fails (Conflict) and is decided again. The batch counts as written when each of them has said that it has seen it, or
has lost its lease, or a lease's time has passed: a member's lease counts as renewed only once its mirror has what
others wrote to its records before. So whatever was answered is what everybody answers.
"""

import logging
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from speedwell.fs.errors import Conflict, InvalidArgument, NotLeader, SpeedwellError
from speedwell.fs.etcd_client import EtcdClient
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.proto import etcd_pb2 as pb
from speedwell.fs.slots import BLOCKS
from speedwell.fs.store.block_map import Owner
from speedwell.fs.store.block_owners import BlockOwners
from speedwell.fs.store.change_encoding import decode_changes, encode_changes
from speedwell.fs.store.contract import Batch, Store, end_of_prefix
from speedwell.fs.store.others_records import OthersRecords
from speedwell.fs.store.replicated import DATA, MAP, MIRROR_AHEAD, MIRROR_DATA, TURN, ReplicatedStore
from speedwell.fs.store.transactions import fetch, operation, unchanged

log = logging.getLogger(__name__)

LEASE_SECONDS = 1
DECIDE_SECONDS = 2.0
TELL_PAUSE_SECONDS = 0.01


_REVISION = struct.Struct(">Q")


class SharedStore(ReplicatedStore):
    """See `speedwell.fs.store.contract.Store`; all of it raises NotLeader while this member has no lease.

    `guard` is held by whoever decides by what the store has. `tell` tells the nameserver at an address of a revision,
    within that many seconds, and returns whether it has seen that.
    """

    _blocks = BLOCKS

    def __init__(self, etcd: EtcdClient, mirror: Store, prefix: str, address: str) -> None:
        super().__init__(etcd, mirror, prefix, address)
        self.guard = threading.RLock()
        self.tell: Callable[[str, int, float], bool] = lambda address, revision, seconds: False
        self._lock = threading.RLock()      # type: ignore[assignment]
        self._seen = threading.Condition()
        self.owners = BlockOwners(etcd, self._prefix, self._member)
        self._joined = 0
        self._behind = 0            # a turn of this member that its mirror has not seen
        self._applied: set[int] = set()
        self._ahead = {_REVISION.unpack(key[1:])[0] for key, _ in mirror.iterate(
            MIRROR_AHEAD, end_of_prefix(MIRROR_AHEAD))}
        self._others = OthersRecords(etcd, self._key(DATA), lambda: self._turn_revision)
        self._lease_seconds = float(LEASE_SECONDS)      # as etcd grants it
        self._telling = False
        self.served_by: object = None       # whose memory is as new as what is owned

    # ------------------------------------------------------------------ deciding

    def decide(self, block: int | None, method: Callable[[Any], Any], request: Any) -> Any:
        """What `method` answers, called again when another owner has changed what it decides by. Raises NotOwner if
        `block` is not this member's."""
        deadline = time.monotonic() + DECIDE_SECONDS
        while True:
            try:
                with self.guard:
                    self._others.forget()
                    if block is not None:
                        self.owners.require(block)
                    return method(request)
            except Conflict:
                if time.monotonic() > deadline:
                    raise
            self.wait_for(self._behind, deadline - time.monotonic())

    def wait_for(self, revision: int, timeout_seconds: float) -> None:
        """Until the mirror has all that was written up to a revision of ours. Raises NotLeader if it takes longer."""
        with self._seen:
            if not self._seen.wait_for(lambda: self._revision >= revision or self._stopped.is_set(),
                                       max(timeout_seconds, 0.0)):
                raise NotLeader("etcd does not say what other owners wrote")

    def wait_for_written(self, revision: int, timeout_seconds: float) -> None:
        """As `wait_for`, at the word of somebody else. Raises InvalidArgument for one that etcd has not come to."""
        try:
            self.wait_for(revision, timeout_seconds / 10)
        except NotLeader:
            if revision > (reached := self._etcd.range(self._key(MAP), b"").header.revision):
                raise InvalidArgument(f"revision: etcd has come to {reached}") from None
            self.wait_for(revision, timeout_seconds)

    def catch_up(self) -> None:
        """Returns once the mirror has all that any owner had written before the call. Raises NotLeader."""
        turns = self._etcd.range(self._key(TURN), end_of_prefix(self._key(TURN)) or b"").kvs
        self.wait_for(max((turn.mod_revision for turn in turns), default=0), DECIDE_SECONDS)

    def still(self) -> threading.RLock:
        """While it is held the mirror does not change."""
        return self._lock      # type: ignore[return-value]

    def get(self, key: bytes) -> bytes | None:
        if self._is_mine(key):
            return super().get(key)
        self._require_leadership()
        return self._others.get(key)

    def get_all(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return [self.get(key) for key in keys]      # each of its owner

    def iterate(self, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Names in another owner's directory come from etcd. What reaches over several blocks comes from the mirror,
        which may be some milliseconds behind what other owners answered."""
        if start[:1] != records.DENTRY_PREFIX or len(start) < 9 or stop is None or self._is_mine(start):
            return super().iterate(start, stop)
        self._require_leadership()
        return self._others.iterate(start, stop)

    def write(self, batch: Batch) -> None:
        own, others, strange = Batch(), set[Owner](), []
        with self._lock:
            self._require_leadership()
            self._batches += 1
            token = f"{self.owners.member}.{self._batches}".encode()
            changes = []
            for key, value in batch.changes.items():
                if self._is_mine(key):
                    own.changes[MIRROR_DATA + key] = value
                elif key == records.AGE_KEY:
                    continue        # that is for the owner of block 0 to keep
                else:
                    strange.append((key, value))
                    if key[:1] != records.DELETION_PREFIX:  # that owner finds what it has to delete in its mirror
                        others.add(self.owners.of(records.block_of_key(key)))
                changes.append(operation(self._key(DATA + key), value))
            if any(key[:1] == records.TRASH_POLICY_PREFIX or self._is_first_quota(key) for key in batch.changes):
                others |= self.owners.others
            revision = self._transact(token, changes, others)
            self._turn_revision = revision
            self._applied.add(revision)
            if strange:
                own.put(_ahead_key(revision), encode_changes(strange))
                self._ahead.add(revision)
            self._mirror.write(own)
            self._others.wrote(batch.changes, revision)
            self._compact()
        until = time.monotonic() + self._lease_seconds
        for other in others:
            self._tell(other, revision, until)

    def sync(self) -> None:
        self._require_leadership()

    def _transact(self, token: bytes, changes: list[pb.RequestOp], others: set[Owner]) -> int:
        """The revision. Raises Conflict, NotLeader, StorageFailed."""
        own_turn = self.owners.own_turn
        compare = [unchanged(own_turn, self._turn_revision), *self._others.unchanged()]
        if others:
            compare.append(self.owners.unchanged())
        turns = [own_turn, *(self.owners.turn_of(other.member) for other in others)]
        answer = self._etcd.transaction(pb.TxnRequest(
            compare=compare, success=[*changes, *(operation(turn, token) for turn in turns)],
            failure=[fetch(own_turn), fetch(self._key(MAP))]))
        if answer.succeeded:
            return int(answer.header.revision)
        turn, owners = (response.response_range.kvs for response in answer.responses)
        if not turn:
            self._leads_until = 0.0
            raise NotLeader("this nameserver's blocks were taken over")
        if turn[0].value == token:
            return int(turn[0].mod_revision)    # it was carried out, only the answer was lost
        self._behind = max(turn[0].mod_revision if turn[0].mod_revision != self._turn_revision else 0,
                           owners[0].mod_revision if owners else 0)
        raise Conflict("another nameserver changes the same again and again: try again")

    def _tell(self, other: Owner, revision: int, until: float) -> None:
        """Returns when `other` answers nothing older any more: then, if it says nothing."""
        with self._lock:
            self._telling = True
        try:
            while self.owners.lives(other) and (left := until - time.monotonic()) > 0 and not self.tell(
                    other.address, revision, left):
                self._require_leadership()
                time.sleep(TELL_PAUSE_SECONDS)
        finally:
            with self._lock:
                self._telling = False

    def _later(self) -> dict[bytes, bytes | None]:
        found: dict[bytes, bytes | None] = {}
        for _, changes in self._mirror.iterate(_ahead_key(self._revision + 1), end_of_prefix(MIRROR_AHEAD)):
            found.update(decode_changes(changes))
        return found

    def _is_first_quota(self, key: bytes) -> bool:
        """Whether it is of a quota and there was none: others look for quotas from then on only."""
        return key[:1] == records.QUOTA_PREFIX and next(iter(self._mirror.iterate(
            records.QUOTA_PREFIX, end_of_prefix(records.QUOTA_PREFIX))), None) is None

    def _is_mine(self, key: bytes) -> bool:
        return self.owners.owns(records.block_of_key(key))

    # ------------------------------------------------------------------ being a member

    def serve(self, changed: Callable[[], None]) -> None:
        """Be a member until `stop`. `changed` is called, with the guard, when there is more to answer for, or what
        others keep in memory has changed, and when nothing is left."""
        while not self._stopped.is_set():
            try:
                self._check_cluster()
                self.owners.recall()
                self._join()
                self._follow_as_member(changed)
            except SpeedwellError as error:
                if not self._stopped.is_set():
                    log.warning("%s", error)
            except Exception:   # who goes on renewing its lease and follows nothing keeps its blocks from others
                log.exception("following etcd failed: this nameserver gives its blocks up and joins again")
            self.resign()
            self.owners.give_up()
            with self.guard:
                self._others.forget()
                changed()
            self._stopped.wait(0.1)

    def leave(self) -> None:
        """Hand all blocks over to another member, if there is one, and stop."""
        heir = self.owners.heir()
        if heir and self.leads:
            with self.guard, self._lock:
                try:
                    self._hand_over(self.owners.own_blocks, heir)
                except SpeedwellError as error:
                    log.warning("others take this nameserver's blocks when its lease ends: %s", error)
        self.stop()

    def _join(self) -> None:
        began = time.monotonic()
        lease, granted_seconds = self._etcd.grant_lease(LEASE_SECONDS)
        member = uuid.uuid4().hex
        revision = self.owners.announce(member, self.address, lease)
        with self._lock:
            self.owners.member = member
            self._lease, self._batches, self._applied = lease, 0, set()
            self._turn_revision = self._joined = self._compacted = revision
            self._leads_until, self._lease_seconds = began + granted_seconds, granted_seconds
        log.info("joined as %s at revision %d", member, self._joined)
        self._renewing = threading.Thread(target=self._renew, args=(lease, granted_seconds), daemon=True,
                                          name="membership")
        self._renewing.start()

    def _renew(self, lease: int, granted_seconds: float) -> None:
        try:
            super()._renew(lease, granted_seconds)
        finally:
            if self._watching is not None:
                self._watching.cancel()

    def _may_go_on(self) -> bool:
        """Whether the mirror has all that was written to this member's records before the call."""
        turn = self._etcd.range(self.owners.own_turn, b"").kvs
        with self._seen:
            return bool(turn) and self._seen.wait_for(
                lambda: max(self._revision, self._turn_revision) >= turn[0].mod_revision, self._lease_seconds / 8)

    def _follow_as_member(self, changed: Callable[[], None]) -> None:
        self._watching = self._etcd.watch(self._prefix, self._end, self._revision + 1)
        for answer in self._watching:
            if self._stopped.is_set() or not self.leads:
                return
            if answer.canceled:
                self.resign()   # nobody is answered from what is being filled
                self._exclusively(self._load)
                return
            for revision, events in groupby(answer.events, key=lambda event: int(event.kv.mod_revision)):
                self._see(revision, list(events), changed)
            if not self.owners.is_settled and self._revision >= self._joined:
                self._settle()

    def _see(self, revision: int, events: list[pb.Event], changed: Callable[[], None]) -> None:
        """Take what one transaction did over into the mirror: what is decided by it with the guard."""
        own_turn = self.owners.own_turn
        with self._lock:
            is_applied = revision in self._applied
            self._applied.discard(revision)
        batch = Batch()
        is_decided_by = is_in_memory = False
        for event in events:
            name = event.kv.key[len(self._prefix):]
            if name.startswith(DATA):
                key = name[len(DATA):]
                is_mine = self._is_mine(key)
                if is_applied and is_mine:
                    continue
                is_decided_by |= is_mine
                is_in_memory |= not is_mine and (key[:1] in records.KEPT_IN_MEMORY or self._is_first_quota(key))
            else:
                is_decided_by |= event.kv.key == own_turn and not is_applied
                is_decided_by |= name == MAP
            self._mirror_change(batch, event.kv.key, None if event.type == pb.Event.DELETE else event.kv.value)
        if revision in self._ahead:
            self._ahead.discard(revision)
            batch.delete(_ahead_key(revision))

        def take_over() -> None:
            before = self.owners.own_blocks
            self._write_mirror(batch, revision)
            for event in events:
                gone = event.type == pb.Event.DELETE
                if event.kv.key == own_turn and revision > self._turn_revision:
                    self._turn_revision = revision
                    if gone:
                        self._leads_until = 0.0
                self.owners.learn(event.kv.key[len(self._prefix):], b"" if gone else event.kv.value, revision)
            if self.owners.own_blocks - before or (is_in_memory and before):
                self._others.forget()     # what an earlier request read may be old
                changed()

        if is_decided_by or is_in_memory:
            self._exclusively(take_over)
        else:
            with self._lock:
                take_over()
        with self._seen:
            self._seen.notify_all()

    def _exclusively(self, change: Callable[[], None]) -> None:
        """With the guard, or while its holder has decided and only tells others."""
        while not self.guard.acquire(timeout=0.002):
            with self._lock:
                if self._telling:
                    return change()
        try:
            with self._lock:
                change()
        finally:
            self.guard.release()

    def _settle(self) -> None:
        """Take what nobody owns any more, or give half of one's blocks to a member without any."""
        self.owners.is_settled = True
        if not self.owners.inherit() and (gift := self.owners.gift()):
            self._exclusively(lambda: self._hand_over(*gift))

    def _hand_over(self, blocks: set[int], member: str) -> None:
        """With the guard: from now on these blocks are another member's."""
        self._turn_revision = self.owners.hand_over(blocks, member, self._turn_revision)


def _ahead_key(revision: int) -> bytes:
    return MIRROR_AHEAD + _REVISION.pack(revision)
