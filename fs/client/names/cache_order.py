"""Which entries of a bounded cache go first: those not used for the longest. Knows no files."""

from collections import OrderedDict


class LeastRecentlyUsed:
    """Entries by key, each with its bytes; in all at most `capacity_bytes`. Not thread-safe."""

    def __init__(self, capacity_bytes: int) -> None:
        self.used_bytes = 0
        self._capacity_bytes = capacity_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def use(self, key: str) -> None:
        """The entry, if there is one, goes last from now on."""
        if key in self._sizes:
            self._sizes.move_to_end(key)

    def add(self, key: str, size_bytes: int) -> list[str]:
        """Note a new entry, or another size of one; returns the keys that go for it. One that is larger than the
        cache goes itself."""
        self.remove(key)
        self._sizes[key] = size_bytes
        self.used_bytes += size_bytes
        gone = []
        while self.used_bytes > self._capacity_bytes:
            oldest, its_bytes = self._sizes.popitem(last=False)
            self.used_bytes -= its_bytes
            gone.append(oldest)
        return gone

    def remove(self, key: str) -> None:
        """Forget an entry, if there is one."""
        self.used_bytes -= self._sizes.pop(key, 0)
