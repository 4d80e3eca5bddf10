"""Fluid flows on a network: a plain interface to the compiled kernel that numbers routes and flows by itself."""

from collections.abc import Mapping, Sequence

import numpy as np

from speedwell.sim import kernel
from speedwell.sim.errors import InvalidSetting
from speedwell.sim.state import Reals, new_state, with_room

Link = tuple[str, str]

_ROUTES = 1024
_FLOWS = 1024


class FluidNetwork:
    """Flows at max-min fair rates. Time in seconds, sizes in bits. A flow is known by the number `start` gives."""

    def __init__(self, capacities_bps: Mapping[Link, float], longest_route: int = 8) -> None:
        """Raises InvalidSetting for a capacity that is not a positive number."""
        for link, capacity_bps in capacities_bps.items():
            if not 0 < capacity_bps < np.inf:
                raise InvalidSetting(f"link {link[0]}-{link[1]}: a capacity is a positive number of bits per second, "
                                     f"not {capacity_bps!r}")
        self.links = {link: number for number, link in enumerate(capacities_bps)}
        self._state = new_state(list(capacities_bps.values()), _ROUTES, longest_route, _FLOWS)
        self._routes: dict[tuple[Link, ...], int] = {}
        self._flows = 0
        self.running = 0

    @property
    def now(self) -> float:
        return float(self._state.clock[0])

    def start(self, route: Sequence[Link], size_bits: float) -> int:
        """Start a flow now. The route has at least one link, and at most `longest_route`."""
        flow = self._flows
        self._flows += 1
        self.running += 1
        number = self._route_number(tuple(route))
        self._state = with_room(self._state, len(self._routes), self._flows)
        kernel.add_flows(self._state, np.array([flow]), np.array([number]), np.array([float(size_bits)]))
        return flow

    def cancel(self, flow: int) -> float:
        """Take a running flow off; returns the bits it had left."""
        self.running -= 1
        return float(kernel.remove_flow(self._state, flow))

    def next_completion(self) -> float:
        """When the next flow ends if nothing else happens; infinity if none does."""
        return float(kernel.next_completion(self._state))

    def advance(self, until: float) -> list[int]:
        """Go on to the next completion, at most to `until`; returns the flows that ended at that moment."""
        number = kernel.complete(self._state, until)
        self.running -= number
        return [int(flow) for flow in self._state.ended[:number]]

    def set_capacity(self, link: Link, capacity_bps: float) -> None:
        """Change a link's capacity; 0 for a link that failed."""
        kernel.set_capacity(self._state, self.links[link], float(capacity_bps))

    def rate_bps(self, flow: int) -> float:
        """A running flow's rate."""
        return float(kernel.rate(self._state, flow))

    def is_running(self, flow: int) -> bool:
        return bool(np.isnan(self._state.flows["finished"][flow]))

    def bits_left(self, flows: Sequence[int]) -> Reals:
        """What flows have still to be sent; 0 for those that have ended."""
        left = np.zeros(len(flows))
        kernel.count_flows(self._state, np.array(flows, np.int64), left)
        return left

    def carried_bits(self) -> Reals:
        """What each link has carried since the start, in the order of `links`."""
        bits = np.zeros(len(self.links))
        kernel.count_links(self._state, bits)
        return bits

    def _route_number(self, route: tuple[Link, ...]) -> int:
        number = self._routes.get(route)
        if number is None:
            number = self._routes[route] = len(self._routes)
            self._state = with_room(self._state, len(self._routes), 0)
            self._state.routes["length"][number] = len(route)
            self._state.route_links[number, : len(route)] = [self.links[link] for link in route]
        return number
