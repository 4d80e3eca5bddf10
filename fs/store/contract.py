"""What the nameserver asks of a key-value store: ordered keys, range reads, atomic batches."""

from collections.abc import Iterator, Sequence
from typing import Protocol

IDENTITY_KEY = b"\x00namespace"
"""Of the id of the namespace that a store holds: 16 bytes, made once."""


class Batch:
    """Changes that take effect together or not at all; the last change of a key wins."""

    def __init__(self) -> None:
        self.changes: dict[bytes, bytes | None] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self.changes[key] = value

    def delete(self, key: bytes) -> None:
        """Deleting a key that does not exist is no error."""
        self.changes[key] = None


class Store(Protocol):
    """An ordered map from bytes to bytes, usable by several threads.

    Every method raises StorageFailed (or NoSpace, on a full disk) when the storage below fails.
    """

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`, None if there is none."""

    def get_all(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """The value of each. Meant for keys that lie side by side: what is between them may be read too."""

    def iterate(self, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < stop (no end if `stop` is None), in the order of the keys' bytes.

        Shows the store as it was when the iteration began, whatever is written meanwhile.
        """

    def write(self, batch: Batch) -> None:
        """Apply the whole batch atomically. When it returns, the change survives a crash of this process
        (and of the machine, where the store was opened with `sync`)."""

    def sync(self) -> None:
        """Force to the disk what was written before; those who want it at once share it."""

    def close(self) -> None:
        """Release the store. Closing twice is no error; anything else afterwards raises StorageFailed."""


def end_of_prefix(prefix: bytes) -> bytes | None:
    """The first key after all keys that begin with `prefix`; None if no key can come after them."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
