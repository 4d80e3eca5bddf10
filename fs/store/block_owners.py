"""Which members of a shared store live, and which of them owns which blocks, by records of etcd that all follow.

    PREFIX/map             who owns which blocks; each change is a transaction, its revision is the epoch
    PREFIX/member/MEMBER   the address of one that lives, on its lease
    PREFIX/turn/MEMBER     written with every batch; deleted when its blocks are taken over
"""

import logging

from speedwell.fs.errors import NotOwner, StorageFailed
from speedwell.fs.etcd_client import EtcdClient
from speedwell.fs.proto import etcd_pb2 as pb
from speedwell.fs.store.block_map import NOBODY, BlockMap, Owner
from speedwell.fs.store.contract import end_of_prefix
from speedwell.fs.store.replicated import LEADER, MAP, TURN
from speedwell.fs.store.transactions import absent, leased, operation, present, unchanged

log = logging.getLogger(__name__)

_MEMBER = b"member/"


class BlockOwners:
    """As `member`, one of them, knows it. What asks etcd raises StorageFailed."""

    def __init__(self, etcd: EtcdClient, prefix: bytes, member: str) -> None:
        self._etcd = etcd
        self._prefix = prefix
        self._map = BlockMap()
        self._alive: dict[str, str] = {}
        self.member = member
        self.epoch = 0
        self.is_settled = False
        """Whether nothing was learned since somebody asked who is to own what (`inherit`, `gift`)."""

    # ------------------------------------------------------------------ who owns what

    @property
    def own_blocks(self) -> set[int]:
        return self._map.blocks_of(self.member)

    @property
    def first(self) -> Owner:
        """The owner of block 0, and of all that is no inode's."""
        return self._map.owners[0]

    @property
    def is_first(self) -> bool:
        return self.first.member == self.member

    @property
    def others(self) -> set[Owner]:
        return {owner for owner in self._map.owners if owner.member not in ("", self.member)}

    @property
    def addresses(self) -> set[str]:
        """Of the members that live."""
        return set(self._alive.values())

    def runs(self) -> list[tuple[int, int, str]]:
        """(first block, last block, address) of all owners."""
        return [(blocks[0], blocks[-1], owner.address) for owner, blocks in self._map.runs()]

    def of(self, block: int) -> Owner:
        return self._map.owners[block]

    def owns(self, block: int) -> bool:
        return self._map.owners[block].member == self.member

    def require(self, block: int) -> None:
        """Raises NotOwner."""
        owner = self._map.owners[block]
        if owner.member != self.member:
            raise NotOwner(f"block {block} of the namespace is the nameserver's at {owner.address or '(nobody)'}, "
                           f"epoch {self.epoch}")

    def lives(self, owner: Owner) -> bool:
        return owner.member in self._alive

    # ------------------------------------------------------------------ what etcd says

    def recall(self) -> None:
        """Learn all before this one is a member."""
        self._alive, self._map, self.epoch = {}, BlockMap(), 0
        for name, end in ((MAP, b""), (_MEMBER, end_of_prefix(self._prefix + _MEMBER) or b"")):
            for pair in self._etcd.range(self._prefix + name, end).kvs:
                self.learn(pair.key[len(self._prefix):], pair.value, pair.mod_revision)

    def learn(self, name: bytes, value: bytes, revision: int) -> None:
        """Take a record of members or owners into account; an empty one is gone."""
        if name == MAP and revision > self.epoch:
            self._map, self.epoch = BlockMap.decode(value), revision
        elif name.startswith(_MEMBER):
            self._alive.pop(name[len(_MEMBER):].decode(), None)
            if value:
                self._alive[name[len(_MEMBER):].decode()] = value.decode()
        else:
            return
        self.is_settled = False

    @property
    def own_turn(self) -> bytes:
        return self.turn_of(self.member)

    def turn_of(self, member: str) -> bytes:
        """The key of a member's turn."""
        return self._prefix + TURN + b"/" + member.encode()

    def unchanged(self) -> pb.Compare:
        """Whether the map is what is known of it."""
        return unchanged(self._prefix + MAP, self.epoch)

    # ------------------------------------------------------------------ who is to own what

    def announce(self, member: str, address: str, lease: int) -> int:
        """Say that a member lives, without blocks yet; the revision of its turn."""
        answer = self._etcd.transaction(pb.TxnRequest(success=[
            leased(self._key_of(member), address.encode(), lease), operation(self.turn_of(member), b"joined")]))
        self.is_settled = False
        return int(answer.header.revision)

    def give_up(self) -> None:
        """Own nothing from now on, whatever etcd says."""
        self._map = self._map.given(self.own_blocks, NOBODY)

    def heir(self) -> str:
        """The member that gets what this one leaves; empty if it is alone."""
        return self._map.heir(self.member, self._alive)

    def gift(self) -> tuple[set[int], str] | None:
        """Half of one's blocks, if one has most, and the member without any that is to get them."""
        return self._map.gift(self.member, self._alive)

    def inherit(self) -> bool:
        """Share the blocks of those that are gone among the members; whether any are. Raises StorageFailed, too, if
        a nameserver keeps this namespace alone."""
        gone = self._map.gone(self._alive)
        if not gone:
            return False
        gone.discard("")
        if not self._propose(
                self._map.inherited(self._alive, self.member),
                [*(absent(self._key_of(member)) for member in gone), absent(self._prefix + LEADER)],
                [operation(self.turn_of(member), None) for member in gone]).succeeded:
            self.is_settled = False
            found = self._etcd.range(self._prefix + LEADER, b"").kvs
            if found:
                raise StorageFailed(f"the nameserver at {found[0].value.decode()} keeps this namespace alone: stop "
                                    "it, or start this one without --shared")
        return True

    def hand_over(self, blocks: set[int], member: str, turn_revision: int) -> int:
        """Make these blocks another member's; the revision of this one's turn, which was changed before by
        `turn_revision`, then."""
        after = self._map.given(blocks, Owner(member, self._alive[member]))
        answer = self._propose(after, [unchanged(self.own_turn, turn_revision), present(self._key_of(member))],
                               [operation(self.own_turn, b"moved")])
        self.is_settled = False
        log.info("%d blocks %s to the nameserver at %s", len(blocks), "go" if answer.succeeded else "cannot go now",
                 self._alive[member])
        if not answer.succeeded:
            return turn_revision
        self._map = after
        return int(answer.header.revision)

    def _propose(self, after: BlockMap, compare: list[pb.Compare], more: list[pb.RequestOp]) -> pb.TxnResponse:
        """Write another map, with more."""
        return self._etcd.transaction(pb.TxnRequest(
            compare=[self.unchanged(), *compare],
            success=[operation(self._prefix + MAP, after.encode()), *more]))

    def _key_of(self, member: str) -> bytes:
        return self._prefix + _MEMBER + member.encode()
