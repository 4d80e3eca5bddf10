"""What a request reads of other owners' records in etcd itself, and that it is still so when it writes."""

from collections.abc import Callable, Iterator, Mapping

from speedwell.fs.errors import NotLeader
from speedwell.fs.etcd_client import EtcdClient
from speedwell.fs.proto import etcd_pb2 as pb
from speedwell.fs.store.transactions import absent, unchanged

PAGE = 2000


class OthersRecords:
    """Of one request at a time; records are below `prefix` in etcd. Methods that read raise StorageFailed, and
    NotLeader for an etcd that has not come to the revision `reached`: it lost what it had."""

    def __init__(self, etcd: EtcdClient, prefix: bytes, reached: Callable[[], int]) -> None:
        self._etcd = etcd
        self._prefix = prefix
        self._reached = reached
        self.forget()

    def forget(self) -> None:
        """Begin another request, or the same anew."""
        self._read: dict[bytes, tuple[int, bytes | None]] = {}
        self._empty: set[tuple[bytes, bytes]] = set()

    def get(self, key: bytes) -> bytes | None:
        if key not in self._read:
            found = self._range(self._prefix + key, b"").kvs
            self._read[key] = (found[0].mod_revision, found[0].value) if found else (0, None)
        return self._read[key][1]

    def iterate(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As of one moment. Only that a range is empty is noted."""
        begin, end, more, revision = self._prefix + start, self._prefix + stop, True, 0
        while more:
            page = self._range(begin, end, limit=PAGE, revision=revision)
            if not page.kvs and not revision:
                self._empty.add((begin, end))
            revision, more = revision or page.header.revision, page.more
            for pair in page.kvs:
                yield pair.key[len(self._prefix):], pair.value
                begin = pair.key + b"\0"

    def _range(self, begin: bytes, end: bytes, **options: int) -> pb.RangeResponse:
        reached = self._reached()
        answer = self._etcd.range(begin, end, **options)
        if answer.header.revision < reached:
            raise NotLeader("etcd has lost what it had")
        return answer

    def wrote(self, changes: Mapping[bytes, bytes | None], revision: int) -> None:
        """What was read and is so now."""
        for key in changes.keys() & self._read.keys():
            self._read[key] = (0 if changes[key] is None else revision, changes[key])

    def unchanged(self) -> list[pb.Compare]:
        """What a transaction must ask for."""
        return [*(unchanged(self._prefix + key, revision) for key, (revision, _) in self._read.items()),
                *(absent(begin, end) for begin, end in self._empty)]
