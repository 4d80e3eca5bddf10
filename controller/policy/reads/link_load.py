"""The flows in flight and the links they cross, in arrays for the compiled part of Mayflower (`share_kernels`)."""

from __future__ import annotations

import math

import numpy as np

from speedwell.controller.policy.compiled import Integers, Reals, Records
from speedwell.controller.policy.network.graph import Path
from speedwell.controller.policy.reads import share_kernels as kernels

FIRST_FLOWS, FIRST_LINKS, FIRST_ROOM, FIRST_WIDTH = 64, 64, 8, 8
BACKGROUND_ORDER = 1 << 62
"""Traffic that is not a known flow comes after the flows, whenever these came."""


class ReadFlow:
    """A read in flight, in the paper's terms f: bandwidth b_f, remaining size r_f, freeze state and its end T.

    Compared by identity. Counters give `remaining_bits` as of `settled_at`; between them it is taken to
    shrink at the estimated bandwidth. One that was dropped stays as it was then.
    """

    __slots__ = ("_table", "flow_id", "links", "path", "row", "size_bits")

    def __init__(self, flow_id: str, path: Path, links: tuple[int, ...], size_bits: float, table: ShareTable,
                 row: int) -> None:
        self.flow_id = flow_id
        self.path = path
        self.links = links
        self.size_bits = size_bits
        self.row = row
        self._table: ShareTable | _Dropped = table

    @property
    def bandwidth_bps(self) -> float:
        return float(self._table.flows["bandwidth"][self.row])

    @property
    def remaining_bits(self) -> float:
        return float(self._table.flows["remaining"][self.row])

    @property
    def settled_at(self) -> float:
        return float(self._table.flows["settled_at"][self.row])

    @property
    def frozen(self) -> bool:
        return bool(self._table.flows["frozen"][self.row])

    @property
    def frozen_until(self) -> float:
        return float(self._table.flows["frozen_until"][self.row])

    @property
    def measured_bps(self) -> float | None:
        """The rate that the last poll showed; None before the first."""
        measured = float(self._table.flows["measured"][self.row])
        return None if math.isnan(measured) else measured

    def remaining_at(self, now: float) -> float:
        """r_f in bits: the last known remaining size less what the estimated bandwidth has moved since."""
        if not self.links:
            return 0.0
        return max(self.remaining_bits - self.bandwidth_bps * (now - self.settled_at), 0.0)

    def dropped(self) -> None:
        """Its row will be another's."""
        self._table, self.row = _Dropped(self._table.flows[self.row:self.row + 1].copy()), 0


class _Dropped:
    """What is kept of the row of a flow that is no more."""

    def __init__(self, flows: Records) -> None:
        self.flows = flows


class ShareTable:
    """Rows of flows and links. `share_kernels` says how they hang together."""

    def __init__(self) -> None:
        self.flows: Records = np.zeros(FIRST_FLOWS, kernels.FLOW)
        self.routes: Integers = np.full((FIRST_FLOWS, FIRST_WIDTH), -1, np.int64)
        self.links: Records = np.zeros(0, kernels.LINK)
        self.members: Integers = np.zeros(FIRST_LINKS * FIRST_ROOM, np.int64)
        self.ascending: Integers = self.members.copy()
        self.bandwidths: Reals = np.zeros(len(self.members))
        self.losing: Integers = np.zeros(FIRST_FLOWS, np.int64)
        self.new_shares: Reals = np.zeros(FIRST_FLOWS)
        """Scratch: a row for each flow."""
        self._free = list(range(FIRST_FLOWS - 1, -1, -1))
        self._orders = 0
        self._stamps = 0
        self._used = 0

    # --- links ---

    def set_capacity(self, link: int, capacity_bps: float) -> None:
        """A link's capacity; a link whose index is the next one is added."""
        if link == len(self.links):
            self.links = np.concatenate([self.links, np.zeros(1, kernels.LINK)])
            row = self.new_row((link,), 0.0, 0.0)
            self.flows["order"][row] = BACKGROUND_ORDER
            self.links[link] = (capacity_bps, 0.0, capacity_bps, 0.0, math.nan, 0.0, 0, 0, 0, row, True, -1)
            self._move(link, FIRST_ROOM)
            self.ascending[self.links["first"][link]] = row
        elif self.links["capacity"][link] != capacity_bps:
            self.links["capacity"][link] = capacity_bps
            self.links["stale"][link] = True

    def background_bps(self, link: int) -> float:
        """The background's share of a link."""
        return float(self.flows["bandwidth"][self.links["background"][link]])

    def rows_on(self, links: tuple[int, ...]) -> Integers:
        """The flows on any of these links, and the links' background."""
        rows = [self.links["background"][list(links)]]
        for link in links:
            first = self.links["first"][link]
            rows.append(self.members[first:first + self.links["count"][link]])
        return np.unique(np.concatenate(rows)) if links else np.zeros(0, np.int64)

    def make_room(self, links: tuple[int, ...]) -> None:
        """See to it that one more flow fits on each of these links, and its background."""
        for link in links:
            if self.links["count"][link] + 2 > self.links["room"][link]:
                self._move(link, 2 * int(self.links["room"][link]))

    def _move(self, link: int, room: int) -> None:
        """Give a link another place for its flows. The former one is left: rooms double, so that all that is left is
        no more than what is in use."""
        if self._used + room > len(self.members):
            more = np.zeros(max(len(self.members), room), np.int64)
            self.members = np.concatenate([self.members, more])
            self.ascending = np.concatenate([self.ascending, more])
            self.bandwidths = np.concatenate([self.bandwidths, more])
        former = slice(self.links["first"][link], self.links["first"][link] + self.links["room"][link])
        for array in (self.members, self.ascending, self.bandwidths):
            array[self._used:self._used + former.stop - former.start] = array[former]
        self.links["first"][link], self.links["room"][link] = self._used, room
        self._used += room

    # --- flows ---

    def new_row(self, links: tuple[int, ...], size_bits: float, now: float) -> int:
        """A row for a flow that begins, on no link yet."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        self.flows[row] = (0.0, size_bits, now, now, False, math.nan, now, 0.0, 0, 0, 0)
        self.route(row, links)
        return row

    def route(self, row: int, links: tuple[int, ...]) -> None:
        """Have a flow cross these links, after all that are there."""
        if len(links) > self.routes.shape[1]:
            more = np.full((len(self.routes), len(links) - self.routes.shape[1]), -1, np.int64)
            self.routes = np.ascontiguousarray(np.hstack([self.routes, more]))
        self._orders += 1
        self.flows["order"][row] = self._orders
        route = self.routes[row]
        route[:] = -1
        route[:len(links)] = links

    def release(self, row: int) -> None:
        """Nobody uses a row any more."""
        self._free.append(row)

    def stamps(self, count: int) -> int:
        """A number such that it and the next `count` are used for the first time."""
        first = self._stamps + 1
        self._stamps += count + 1
        return first

    def _grow(self) -> None:
        size = len(self.flows)
        self.flows = np.concatenate([self.flows, np.zeros(size, kernels.FLOW)])
        self.routes = np.vstack([self.routes, np.full_like(self.routes, -1)])
        self.losing, self.new_shares = np.zeros(2 * size, np.int64), np.zeros(2 * size)
        self._free = list(range(2 * size - 1, size - 1, -1))

    def state(self) -> tuple[Records, Records, Integers, Integers, Reals, Integers]:
        """The arguments that the kernels begin with: flows, links, members, ascending, bandwidths, routes."""
        return self.flows, self.links, self.members, self.ascending, self.bandwidths, self.routes
