"""Contents that are waiting to be deleted from the dataservers.

A content that left the namespace stays on the disks for a grace period, so that open readers finish. Then
its dataserver learns of it in the reply to a heartbeat, again and again until it says that it is gone.
The queue lies in the store beside the namespace: it is written in the batch that removes the file.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice

from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.namespace_records import Content
from speedwell.fs.store import Batch, Store, end_of_prefix

MAX_PER_HEARTBEAT = 1000
MAX_LISTED = 20000


def enqueue(batch: Batch, content: Content, dataservers: Iterable[int], due_ns: int) -> None:
    """Add to `batch`: each of `dataservers` (numbers) deletes `content` from `due_ns` on."""
    for dataserver in dataservers:
        batch.put(records.deletion_key(dataserver, due_ns, content.file_id), b"")


class Deletions:
    """When contents that leave the namespace are deleted: by its age, which each batch that needs it keeps."""

    def __init__(self, grace_ns: int, age_ns: Callable[[int], int]) -> None:
        """`age_ns` says the namespace's age at a time of the nameserver's clock."""
        self._grace_ns = grace_ns
        self.age_ns = age_ns

    def later(self, batch: Batch, content: Content, now_ns: int) -> None:
        """Who has it open gets the grace period."""
        enqueue(batch, content, content.replicas, self.due_ns(batch, now_ns, self._grace_ns))

    def now(self, batch: Batch, content: Content, now_ns: int) -> None:
        """Nobody can have it open."""
        enqueue(batch, content, content.replicas, self.due_ns(batch, now_ns, 0))

    def due_ns(self, batch: Batch, now_ns: int, after_ns: int) -> int:
        """The age that the namespace has `after_ns` from now."""
        age_ns = self.age_ns(now_ns)
        batch.put(records.AGE_KEY, records.encode_age(age_ns))
        return age_ns + after_ns


def due(store: Store, dataserver: int, now_ns: int, deleted: Collection[bytes] = ()) -> list[bytes]:
    """File ids (16 bytes) that `dataserver` is to delete now, the longest waiting first.

    `deleted` are those it reports as gone: they leave the queue.
    """
    start = records.deletion_key(dataserver, 0, bytes(16))
    stop = records.deletion_key(dataserver, now_ns + 1, bytes(16))
    gone = set(deleted)
    batch = Batch()
    waiting: list[bytes] = []
    for key, _ in store.iterate(start, stop):
        file_id = records.deletion_file_id(key)
        if file_id in gone:
            batch.delete(key)
        elif len(waiting) < MAX_PER_HEARTBEAT:
            waiting.append(file_id)
        if len(waiting) == MAX_PER_HEARTBEAT and len(batch.changes) >= len(gone):
            break
    if batch.changes:
        store.write(batch)
    return waiting


def waiting(store: Store) -> Iterator[tuple[int, bytes]]:
    """(number of the dataserver, file id) of all that is to be deleted, at most `MAX_LISTED`."""
    entries = store.iterate(records.DELETION_PREFIX, end_of_prefix(records.DELETION_PREFIX))
    for key, _ in islice(entries, MAX_LISTED):
        yield records.deletion_dataserver(key), records.deletion_file_id(key)
