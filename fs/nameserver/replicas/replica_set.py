"""Who holds a content and who orders its appends: how that may change, and how not.

The rules keep every acknowledged append. An append is acknowledged only when all replicas of an epoch hold
it. So a replica that is not the primary may leave at any time; one may join only by the word of the
primary, which has brought it up to date and orders nothing meanwhile; and another one becomes primary only
when the lease of the present one has ended, or it steps down itself. Pure: no clock, no store.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speedwell.fs.errors import NoReplicaAvailable, StaleEpoch, TooFewReplicas

MAX_EPOCH = 2**32 - 1
LOST_EPOCHS = 1000
"""So many are left out when changes of a set have been lost."""


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


def require_primary(now: Configuration, epoch: int, requester: int) -> None:
    """Raises StaleEpoch when the set has changed since `epoch` or the requester is not the primary."""
    if now.epoch != epoch:
        raise StaleEpoch(f"epoch: the set of replicas is at {now.epoch}, not at {epoch}")
    if requester != now.primary:
        raise StaleEpoch("dataserver_id: it is not the primary, which alone changes a file")


def change(now: Configuration, *, epoch: int, requester: int, remove: Sequence[int],
           add: Sequence[int], full: Sequence[int] = (), new_epoch: bool = False, least: int = 1) -> Configuration:
    """What the primary `requester` asks for, which knows `epoch`. Asking again changes nothing.
    With `new_epoch` the epoch grows even if the set stays.

    Raises StaleEpoch when the set has changed since or the requester is not the primary, NoReplicaAvailable when
    nobody would be left, and TooFewReplicas when fewer than `least` would be: those that are away stay then, and
    nothing is acknowledged without them. Only a primary that leaves itself, because its disk failed (not one that is
    `full`), is let go.
    """
    kept = tuple(number for number in now.replicas if number not in remove)
    wanted = kept + tuple(number for number in dict.fromkeys(add) if number not in kept)
    if now.epoch == epoch + 1 and wanted == now.replicas and requester in (now.primary, *remove):
        return now  # the answer was lost
    require_primary(now, epoch, requester)
    if len(wanted) < min(least, len(now.replicas)) and (requester not in remove or requester in full):
        raise TooFewReplicas(f"{len(wanted)} of {len(now.replicas)} replicas can take it, a change needs {least} "
                             "(--min-replicas)")
    if not wanted:
        raise NoReplicaAvailable("remove: the last replica cannot leave the set")
    return now if wanted == now.replicas and not new_epoch else Configuration(epoch + 1, wanted)


def overtaken(now: Configuration, epoch: int, member: int) -> Configuration:
    """`now` after the dataserver `member` has reported `epoch`, which the namespace does not know: changes of the set
    have been lost with it, and appends would be refused for ever.

    Who knows an epoch was in its set and has all that was acknowledged in it. So it becomes the primary, and brings
    the others up to date or takes them out. The new epoch leaves a gap, so that one that was lost can still be told.
    """
    return Configuration(min(max(now.epoch, epoch) + LOST_EPOCHS, MAX_EPOCH),
                         (member, *(number for number in now.replicas if number != member)))


def without(now: Configuration, lost: int) -> Configuration:
    """`now` after the dataserver `lost` has said itself that it does not hold the content.

    The last replica never leaves: what it may still have is worth more than an empty set.
    """
    kept = tuple(number for number in now.replicas if number != lost)
    return now if not kept or kept == now.replicas else Configuration(now.epoch + 1, kept)
