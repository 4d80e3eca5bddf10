"""The metadata servers, which blocks each owns, and the moves of blocks under way.

A move goes through phases, so that no request meets a server that does not know its block: the new owner says that it
has routes and a listener (and may answer from these addresses), then the tables lead to it, then it is told to take
the block from the former owner, which until then answers what the new one forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from speedwell.controller.errors import ControllerError
from speedwell.controller.policy.metadata.blocks import (
    SPACE,
    Block,
    Node,
    joined,
    moves,
    prefixes_between,
    runs,
    size,
)
from speedwell.controller.policy.metadata.layout import UNITS, Layout, join, lay_out, leave
from speedwell.controller.policy.network.prefixes import Prefix

SETTLE_SECONDS = 5.0
"""For so long a controller that just started only listens: servers tell what they own already."""
SILENT_SECONDS = 3.0


class UnknownMetadataServer(ControllerError):
    """There is no metadata server at this address."""

    status = 404

    def __init__(self, host: str) -> None:
        super().__init__(f"there is no metadata server at {host}", host=host)


class MetadataServerRefused(ControllerError):
    """A metadata server cannot join or leave as asked; nothing was changed."""

    status = 409


class Phase(IntEnum):
    PREPARING = 1
    STEERING = 2
    TAKING = 3
    FETCHING = 4


@dataclass(slots=True, eq=False)
class Transfer:
    """A block on its way to another server; without a source, nobody has records of it."""

    block: Prefix
    source: str | None
    target: str
    phase: Phase
    version: int
    """Of the tables: it goes on once the switches hold them."""


@dataclass(slots=True)
class Server:
    """What a server said last, at `heard_at` in seconds of the monotonic clock."""

    host: str
    port: int
    id: str
    heard_at: float
    owned: tuple[Prefix, ...] = ()
    ready: tuple[Prefix, ...] = ()
    """Blocks that are to come, for which it has routes."""
    fetching: Mapping[Prefix, str] = field(default_factory=dict)
    """Blocks of which the former owner still has records."""
    members: tuple[str, ...] = ()
    """Who had keys when it was told last."""
    is_leaving: bool = False


Above = Callable[[Sequence[str]], Mapping[str, tuple[Node, ...]]]
Check = Callable[[Mapping[str, Sequence[Prefix]]], None]


class MetadataBook:
    """Knows nothing of switches: `above` gives the nodes above servers, `check` raises if the tables for these blocks
    would not fit."""

    def __init__(self, above: Above, check: Check, began_at: float) -> None:
        self._above = above
        self._check = check
        self._began_at = began_at
        self.servers: dict[str, Server] = {}
        self.layout: Layout | None = None
        """Where blocks are to be; None: not settled yet."""
        self.blocks: dict[str, tuple[Prefix, ...]] = {}
        """Where requests are sent, by server."""
        self.transfers: list[Transfer] = []
        self.awaited: set[str] = set()
        """Who had keys under an earlier controller, as others say, and was not heard yet."""
        self._lost: set[str] = set()
        self._left: set[str] = set()
        """The processes that have left."""
        self.version = 1
        self.synced_version = 0
        self._compared_version = 0

    # --- what servers and operators say ---

    def announced(self, said: Server) -> None:
        """A server says that it is there, for the first time or again. Raises MetadataServerRefused."""
        if said.id in self._left:
            raise MetadataServerRefused(f"the metadata server at {said.host} has left: start it anew to have it join",
                                        host=said.host)
        known = self.servers.get(said.host)
        if known is not None and known.id != said.id and said.heard_at - known.heard_at < SILENT_SECONDS:
            raise MetadataServerRefused(f"another metadata server has joined at {said.host} and is alive",
                                        host=said.host)
        if other := next((each for each in self.servers.values() if each.port != said.port), None):
            raise MetadataServerRefused(f"port {said.port} of {said.host} is not {other.port}, where all metadata "
                                        "servers listen", host=said.host)
        if self.layout is not None and said.host not in self.layout.above and not (known and known.is_leaving):
            self._admit(said)
        said.is_leaving = known is not None and known.is_leaving
        self.servers[said.host] = said
        if self.layout is None:
            self.awaited |= set(said.members) - self._lost
        self.awaited -= self.servers.keys()

    def _admit(self, said: Server) -> None:
        assert self.layout is not None
        if (above := self._above([said.host]).get(said.host)) is not None:
            self._relay(join(self.layout, said.host, above))
        holes = self.holes
        if held := [prefix for prefix in said.owned if any(_within(prefix, hole) for hole in holes)]:
            self.blocks[said.host] = tuple(joined([*self.blocks.get(said.host, ()), *held]))
            self.version += 1
            self._go_on_fetching(said, held)

    def _go_on_fetching(self, server: Server, within: Sequence[Prefix]) -> None:
        self.transfers += [Transfer(block, former, server.host, Phase.FETCHING, self.version)
                           for block, former in server.fetching.items()
                           if any(_common(block, each) for each in within)]

    def left(self, host: str, lost: bool) -> None:
        """A server is to hand its blocks to the others, or is `lost` with its records: once nobody is awaited any
        more, others get its blocks, empty. Raises UnknownMetadataServer, MetadataServerRefused, NoIdleServer."""
        if host not in self.servers:
            is_known = host in self.awaited or any(transfer.source == host for transfer in self.transfers)
            if not (lost and is_known):
                raise UnknownMetadataServer(host)
            self._forget_records(host)
            self.awaited.discard(host)
            self._lost.add(host)
            self._grant_holes()
            return
        if self.layout is None:
            raise MetadataServerRefused(f"the controller has just started: {host} can leave once metadata "
                                        "servers have told what they own", host=host)
        if host in self.layout.above:
            self._relay(leave(self.layout, host))
        self.servers[host].is_leaving = True
        if lost:
            self._forget(host)
            self._grant_holes()

    def _grant_holes(self) -> None:
        if self.layout is not None and not self.awaited and (holes := self.holes):
            self._grant(holes)

    def _forget(self, host: str) -> None:
        self.servers.pop(host)
        self._forget_records(host)
        dropped = [transfer for transfer in self.transfers if transfer.target == host]
        self.transfers = [transfer for transfer in self.transfers if transfer.target != host]
        self.version += 1
        orphans: list[Prefix] = list(self.blocks.pop(host, ()))
        for transfer in self.transfers:
            orphans = list(_without(orphans, transfer.block))
        for transfer in dropped:
            if transfer.source is None and transfer.phase is Phase.PREPARING:
                orphans.append(transfer.block)
            elif transfer.source is not None and transfer.phase is not Phase.PREPARING:
                orphans = list(_without(orphans, transfer.block))
                self._grant([transfer.block], transfer.source)
        if orphans:
            self._grant(orphans)

    def _forget_records(self, host: str) -> None:
        for transfer in self.transfers:
            if transfer.source == host:
                transfer.source = None
        self.version += 1

    def _relay(self, layout: Layout) -> None:
        wanted: dict[str, list[Prefix]] = {}
        for block in layout.blocks:
            wanted.setdefault(block.server, []).append(block.prefix)
        self._check(wanted)
        self.layout = layout
        self._compared_version = 0

    # --- going on ---

    def go_on(self, now: float) -> None:
        """Do what is due. Where it changes tables, `version` grows; set `synced_version` once switches hold them."""
        if self.layout is None:
            self._settle(now)
            return
        for transfer in list(self.transfers):
            self._advance(transfer, now)
        self._begin_transfers(now)
        for host in [host for host, server in self.servers.items() if server.is_leaving and not self.blocks.get(host)
                     and not any(host in (each.source, each.target) for each in self.transfers)]:
            self._left.add(self.servers.pop(host).id)
            self.blocks.pop(host, None)

    def _settle(self, now: float) -> None:
        claims = {host: server.owned for host, server in self.servers.items() if server.owned}
        claimed = sum(size(prefix) for prefixes in claims.values() for prefix in prefixes)
        if claimed < size(SPACE) and now - self._began_at < SETTLE_SECONDS:
            return
        above = self._above(sorted(self.servers))
        if not above or (self.awaited and not claims):
            return
        layout = lay_out(above)
        if claims:
            self.blocks = _without_overlaps(claims)
            layout = _as_claimed(self.blocks, above) or layout
            for host, server in self.servers.items():
                self._go_on_fetching(server, self.blocks.get(host, ()))
        self._relay(layout)
        self.version += 1
        if not claims and layout.above:
            self._grant([SPACE])

    def _grant(self, prefixes: Iterable[Prefix], source: str | None = None) -> None:
        """Give blocks that nobody is asked for to those that the layout says; who has records, if anybody does, may
        be the same."""
        assert self.layout is not None
        self.version += 1
        for prefix in prefixes:
            for block in self.layout.blocks:
                if inner := _common(prefix, block.prefix):
                    self.transfers.append(Transfer(inner, source, block.server, Phase.PREPARING, self.version))

    def _begin_transfers(self, now: float) -> None:
        """Where blocks are not where they should be, have them moved."""
        if self._compared_version == self.version:
            return
        assert self.layout is not None
        busy = [transfer.block for transfer in self.transfers]
        steered = [Block(*prefix, host) for host, prefixes in self.blocks.items() for prefix in prefixes]
        is_complete = True
        for move in moves(steered, self.layout.blocks):
            block = move.first, move.length
            if self._is_gone(move.target, now):
                is_complete = False
            elif not any(_common(block, other) for other in busy):
                self.transfers.append(Transfer(block, move.source, move.target, Phase.PREPARING, self.version + 1))
        if len(self.transfers) > len(busy):
            self.version += 1
        self._compared_version = self.version if is_complete else 0

    def _is_gone(self, host: str, now: float) -> bool:
        return host not in self.servers or now - self.servers[host].heard_at > SILENT_SECONDS

    def _advance(self, transfer: Transfer, now: float) -> None:
        if self._is_gone(transfer.target, now):
            if transfer.phase is Phase.PREPARING and transfer.source is not None:
                self.transfers.remove(transfer)
                self._compared_version = 0
                self.version += 1
            return
        target, block = self.servers[transfer.target], transfer.block
        is_synced = self.synced_version >= transfer.version
        if transfer.phase is Phase.PREPARING and is_synced and _covers((*target.ready, *target.owned), block):
            for host in list(self.blocks):
                self.blocks[host] = tuple(joined(_without(self.blocks[host], block)))
            self.blocks[transfer.target] = tuple(joined([*self.blocks.get(transfer.target, ()), block]))
            self.version += 1
            transfer.phase, transfer.version = Phase.STEERING, self.version
        elif transfer.phase is Phase.STEERING and is_synced:
            transfer.phase = Phase.TAKING
        elif transfer.phase is Phase.TAKING and _covers(target.owned, block):
            transfer.phase = Phase.FETCHING
        elif transfer.phase is Phase.FETCHING and not any(_common(each, block) for each in target.fetching):
            self.transfers.remove(transfer)
            self.version += 1

    # --- look-ups ---

    @property
    def members(self) -> list[str]:
        """Who may have records."""
        moving = {host for transfer in self.transfers for host in (transfer.source, transfer.target) if host}
        return sorted(moving | self.awaited | {host for host, blocks in self.blocks.items() if blocks})

    @property
    def holes(self) -> list[Prefix]:
        """Blocks that nobody owns, nor is to get."""
        known = _merged([*(prefix for prefixes in self.blocks.values() for prefix in prefixes),
                         *(transfer.block for transfer in self.transfers)])
        ends = [SPACE[0], *(end for stretch in runs(known) for end in stretch), SPACE[0] + size(SPACE)]
        return [prefix for first, end in zip(ends[::2], ends[1::2], strict=True)
                for prefix in prefixes_between(first, end)]

    @property
    def senders(self) -> dict[str, list[Prefix]]:
        """From which blocks each server may answer: those that it has, gets, and had until now."""
        found = {host: list(prefixes) for host, prefixes in self.blocks.items()}
        for transfer in self.transfers:
            for host in (transfer.source, transfer.target):
                if host is not None:
                    found.setdefault(host, []).append(transfer.block)
        return {host: list(_merged(prefixes)) for host, prefixes in found.items()}

    @property
    def also(self) -> list[tuple[Prefix, str, str | None]]:
        """(block, who may be asked for it too, where its requests are sent): before the tables lead to the new owner
        its own switches do, and those of the former one do until it has handed all over."""
        return [(each.block, each.target, each.source) if each.phase is Phase.PREPARING
                else (each.block, each.source or each.target, each.target) for each in self.transfers]

    def asked_for(self, address: int) -> str | None:
        """Where requests for an address are sent."""
        return next((host for host, prefixes in self.blocks.items()
                     if any(first <= address < first + size((first, length)) for first, length in prefixes)), None)

    def may_own(self, host: str) -> list[Prefix]:
        """The blocks that a server may go on to own."""
        return list(_merged([*self.blocks.get(host, ()),
                             *(transfer.block for transfer in self.transfers
                               if transfer.source == host and transfer.phase < Phase.FETCHING)]))


def _common(a: Prefix, b: Prefix) -> Prefix | None:
    """Of two prefixes that overlap, the inner one."""
    outer, inner = sorted((a, b), key=lambda prefix: prefix[1])
    return inner if outer[0] <= inner[0] < outer[0] + size(outer) else None


def _within(inner: Prefix, outer: Prefix) -> bool:
    return inner[1] >= outer[1] and _common(inner, outer) is not None


def _covers(prefixes: Iterable[Prefix], block: Prefix) -> bool:
    """Whether these prefixes, which may be pieces of it, hold all of a block."""
    return any(first <= block[0] and block[0] + size(block) <= end for first, end in runs(_merged(prefixes)))


def _merged(prefixes: Iterable[Prefix]) -> Iterator[Prefix]:
    """The fewest that hold the same addresses as these, of which some may be within others."""
    kept: list[Prefix] = []
    for prefix in sorted(prefixes):
        if not kept or prefix[0] >= kept[-1][0] + size(kept[-1]):
            kept.append(prefix)
    return joined(kept)


def _without(prefixes: Iterable[Prefix], taken: Prefix) -> Iterator[Prefix]:
    """What is left of disjoint prefixes."""
    low, high = taken[0], taken[0] + size(taken)
    for prefix in prefixes:
        first, end = prefix[0], prefix[0] + size(prefix)
        yield from prefixes_between(first, max(min(end, low), first))
        yield from prefixes_between(min(max(first, high), end), end)


def _without_overlaps(claims: Mapping[str, Sequence[Prefix]]) -> dict[str, tuple[Prefix, ...]]:
    """What two servers claim is the one's with the lower address."""
    taken: list[Prefix] = []
    found: dict[str, tuple[Prefix, ...]] = {}
    for host, prefixes in sorted(claims.items(), key=lambda claim: [part.zfill(3) for part in claim[0].split(".")]):
        rest = list(prefixes)
        for other in taken:
            rest = list(_without(rest, other))
        found[host] = tuple(joined(rest))
        taken += rest
    return found


def _as_claimed(blocks: Mapping[str, Sequence[Prefix]], above: Mapping[str, tuple[Node, ...]]) -> Layout | None:
    """The layout that servers have already; None if they do not have all keys, or in parts that no layout has."""
    unit = size(SPACE) // UNITS
    ranges = sorted((first - SPACE[0], end - SPACE[0], host) for host, prefixes in blocks.items()
                    for first, end in runs(prefixes))
    if sum(end - first for first, end, _ in ranges) < size(SPACE) or any(first % unit for first, _, _ in ranges):
        return None
    return Layout(dict(above), tuple((first // unit, end // unit, host) for first, end, host in ranges))
