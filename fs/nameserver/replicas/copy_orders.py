"""The copies that dataservers were told to make and have not finished, bounded by the bytes that each of them has
before it. Times are monotonic seconds, passed in; one thread at a time."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from speedwell.fs.proto import speedwell_pb2 as pb

BYTES_IN_FLIGHT = 64 << 20
"""To each dataserver: a second's work. A larger file is copied alone."""

SLOW_BYTES_IN_FLIGHT = 8 << 20
"""As long as no replica is missing: so much a second is moved to even out the disks by itself."""

LEAST_BYTES = 1 << 18
"""What a copy counts for at least: small ones cost requests, not bytes."""

UNHEARD_SECONDS = 15.0
"""A copy that its dataserver does not report as under way for so long is ordered from another one."""


@dataclass(slots=True)
class _Order:
    copy: pb.Copy
    target: int
    size_bytes: int
    heard_seconds: float


class CopyOrders:
    """By inode; a file has one at a time, also where its content is replaced meanwhile: who copies follows that."""

    def __init__(self) -> None:
        self._orders: dict[int, _Order] = {}
        self._of_target: defaultdict[int, dict[str, _Order]] = defaultdict(dict)
        self._in_flight: defaultdict[int, int] = defaultdict(int)

    def __contains__(self, inode: int) -> bool:
        return inode in self._orders

    def __len__(self) -> int:
        return len(self._orders)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """(file id, number of the dataserver that makes the replica)."""
        return ((order.copy.file_id, order.target) for order in self._orders.values())

    def has_room(self, target: int, size_bytes: int, bytes_in_flight: int = BYTES_IN_FLIGHT) -> bool:
        """Whether a dataserver may be told to copy so many bytes."""
        before = self._in_flight[target]
        return not before or before + max(size_bytes, LEAST_BYTES) <= bytes_in_flight

    def add(self, copy: pb.Copy, target: int, size_bytes: int, now_seconds: float) -> None:
        order = _Order(copy, target, max(size_bytes, LEAST_BYTES), now_seconds)
        self._orders[copy.inode] = self._of_target[target][copy.file_id] = order
        self._in_flight[target] += order.size_bytes

    def is_made_by(self, inode: int, target: int) -> bool:
        return inode in self._orders and self._orders[inode].target == target

    def heard(self, target: int, copying: Collection[str], ended: Collection[str], now_seconds: float) -> None:
        """Take in what a dataserver says of its copies: those under way, and those that ended, well or not."""
        orders = self._of_target[target]
        for file_id in copying:
            if file_id in orders:
                orders[file_id].heard_seconds = now_seconds
        for file_id in ended:
            if file_id in orders:
                self._remove(orders[file_id])
        for order in [order for order in orders.values() if now_seconds - order.heard_seconds > UNHEARD_SECONDS]:
            self._remove(order)

    def forget_dead(self, is_alive: Callable[[int], bool]) -> None:
        """Give up the copies of dataservers that are not there to make them."""
        for target, orders in self._of_target.items():
            if orders and not is_alive(target):
                for order in list(orders.values()):
                    self._remove(order)

    def to_send(self, target: int, copying: Collection[str]) -> list[pb.Copy]:
        """The orders that a dataserver does not know yet."""
        known = set(copying)
        return [order.copy for file_id, order in self._of_target[target].items() if file_id not in known]

    def _remove(self, order: _Order) -> None:
        del self._orders[order.copy.inode], self._of_target[order.target][order.copy.file_id]
        self._in_flight[order.target] -= order.size_bytes
