"""The placements whose transfers are expected to run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from controller.errors import ControllerError
from controller.policy.placements.sinbad import Placement, PlacementRequest

MAX_EXPECTED = 50_000


class UnknownPlacement(ControllerError):
    """No transfer of a placement with this id is expected."""

    status = 404
    slug = "unknown-placement"
    title = "Unknown placement"

    def __init__(self, placement_id: str) -> None:
        super().__init__(f"no transfer of a placement {placement_id} is expected: it ended, its time is over, or it "
                         "never was", id=placement_id)


class TooManyPlacements(ControllerError):
    """So many transfers are expected that no more can be."""

    status = 503
    slug = "too-many-placements"
    title = "Too many placements"

    def __init__(self) -> None:
        super().__init__(f"the transfers of {MAX_EXPECTED} placements are expected already: ask again later")


@dataclass(frozen=True, slots=True)
class Expected:
    """A placement made at `placed_at`, in seconds of the monotonic clock."""

    id: str
    request: PlacementRequest
    placement: Placement
    placed_at: float

    def is_over(self, now: float) -> bool:
        return now - self.placed_at >= self.placement.duration_seconds


class PlacementBook:
    """At most MAX_EXPECTED of them; each for its expected duration."""

    def __init__(self) -> None:
        self._expected: dict[str, Expected] = {}

    def __len__(self) -> int:
        return len(self._expected)

    def __iter__(self) -> Iterator[Expected]:
        return iter(self._expected.values())

    def require_space(self, number: int) -> None:
        """Raises TooManyPlacements if there is none for so many more."""
        if len(self._expected) + number > MAX_EXPECTED:
            raise TooManyPlacements

    def add(self, expected: Expected) -> None:
        self._expected[expected.id] = expected

    def remove(self, placement_id: str) -> None:
        """Raises UnknownPlacement."""
        if self._expected.pop(placement_id, None) is None:
            raise UnknownPlacement(placement_id)

    def end_those_over(self, now: float) -> None:
        """Forget those whose expected duration has passed."""
        for expected in [expected for expected in self if expected.is_over(now)]:
            del self._expected[expected.id]
