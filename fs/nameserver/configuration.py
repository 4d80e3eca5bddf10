"""Who holds a content and who orders its appends: how that may change, and how not.

The rules keep every acknowledged append. An append is acknowledged only when all replicas of an epoch hold
it. So a replica that is not the primary may leave at any time; one may join only by the word of the
primary, which has brought it up to date and orders nothing meanwhile; and another one becomes primary only
when the lease of the present one has ended, or it steps down itself. Pure: no clock, no store.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fs.errors import NoReplicaAvailable, StaleEpoch

MAX_EPOCH = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Configuration:
    """The replicas of one content (numbers of dataservers), the primary first. `epoch` counts changes."""

    epoch: int
    replicas: tuple[int, ...]

    @property
    def primary(self) -> int | None:
        return self.replicas[0] if self.replicas else None


def succession(now: Configuration, has_lease: Callable[[int], bool]) -> Configuration:
    """`now`, or with another primary if the lease of the present one has ended and somebody else has one.

    `has_lease` must say yes as long as the dataserver itself may believe so.
    """
    if not now.replicas or has_lease(now.replicas[0]):
        return now
    live = [number for number in now.replicas if has_lease(number)]
    if not live:
        return now
    rest = [number for number in now.replicas if number not in live]
    return Configuration(now.epoch + 1, (*live, *rest))


def change(now: Configuration, *, epoch: int, requester: int, remove: Sequence[int],
           add: Sequence[int]) -> Configuration:
    """What the primary `requester` asks for, which knows `epoch`. Asking again changes nothing.

    Raises StaleEpoch when the set has changed since or the requester is not the primary, and
    NoReplicaAvailable when nobody would be left.
    """
    kept = tuple(number for number in now.replicas if number not in remove)
    wanted = kept + tuple(number for number in dict.fromkeys(add) if number not in kept)
    if now.epoch == epoch + 1 and wanted == now.replicas and requester in (now.primary, *remove):
        return now  # the answer was lost
    if now.epoch != epoch:
        raise StaleEpoch(f"epoch: the set of replicas is at {now.epoch}, not at {epoch}")
    if requester != now.primary:
        raise StaleEpoch("dataserver_id: only the primary changes the set of replicas")
    if not wanted:
        raise NoReplicaAvailable("remove: the last replica cannot leave the set")
    return now if wanted == now.replicas else Configuration(epoch + 1, wanted)


def without(now: Configuration, lost: int) -> Configuration:
    """`now` after the dataserver `lost` has said itself that it does not hold the content.

    The last replica never leaves: what it may still have is worth more than an empty set.
    """
    kept = tuple(number for number in now.replicas if number != lost)
    return now if not kept or kept == now.replicas else Configuration(now.epoch + 1, kept)
