"""The clock by which tokens are dated."""

from collections.abc import Callable


class TokenClock:
    """It shows what the wall clock showed when this nameserver began, and goes on from there whatever the wall clock
    is set to: else a jump would end tokens, or make two new keys and forget the one that all clients' tokens are
    signed with. Several owners go by that of the owner of block 0."""

    def __init__(self, clock_ns: Callable[[], int], clock_seconds: Callable[[], float]) -> None:
        """`clock_seconds` is one that nobody sets."""
        self._clock_seconds = clock_seconds
        self.hear(clock_ns() // 1_000_000)

    def hear(self, now_ms: int) -> None:
        """What the owner of block 0 says it is."""
        self._began_ms, self._began_seconds = max(0, now_ms), self._clock_seconds()

    def now_ms(self) -> int:
        """In milliseconds of Unix time, if the clock was right then."""
        return self._began_ms + int((self._clock_seconds() - self._began_seconds) * 1000)
