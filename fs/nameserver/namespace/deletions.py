"""Contents that are waiting to be deleted from the dataservers.

A content that left the namespace stays on the disks for a grace period, so that open readers finish. Then
its dataserver learns of it in the reply to a heartbeat, again and again until it says that it is gone.
The queue lies in the store beside the namespace: it is written in the batch that removes the file.
"""

from collections.abc import Collection, Iterable, Iterator
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
