"""How long a namespace has been served: the clock by which contents are deleted and the trash goes for good.

What the machine's clock shows may jump by hours; how long a file was kept must not depend on it. The time during
which nobody serves the namespace does not count.
"""

from collections.abc import Callable

from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.store import Batch, Store, end_of_prefix

KEEP_SECONDS = 5.0


class Age:
    """Goes on from where the store says. Each entry that waits is written together with the age at that time, so
    that after a crash it never waits longer than it should by more than KEEP_SECONDS, and never shorter."""

    def __init__(self, store: Store, clock_seconds: Callable[[], float]) -> None:
        """`clock_seconds` is one that nobody sets. Raises StorageFailed if what the store has is damaged."""
        self._store = store
        self._clock_seconds = clock_seconds
        value = store.get(records.AGE_KEY)
        self._before_ns = 0 if value is None else records.decode_age(value)
        self._began_seconds = self._kept_seconds = clock_seconds()

    def hear(self, age_ns: int) -> None:
        """What the owner of block 0 says it is."""
        self._before_ns, self._began_seconds = age_ns, self._clock_seconds()

    def now_ns(self) -> int:
        """In nanoseconds."""
        return self._before_ns + int((self._clock_seconds() - self._began_seconds) * 1e9)

    def keep(self) -> None:
        """Write it down now and then, while something waits for its time. Raises StorageFailed."""
        now_seconds = self._clock_seconds()
        if now_seconds - self._kept_seconds < KEEP_SECONDS:
            return
        self._kept_seconds = now_seconds
        if any(next(iter(self._store.iterate(prefix, end_of_prefix(prefix))), None) is not None
               for prefix in (records.DELETION_PREFIX, records.TRASH_PREFIX)):
            batch = Batch()
            batch.put(records.AGE_KEY, records.encode_age(self.now_ns()))
            self._store.write(batch)
