"""The nameserver as a client sees it, with a cache of attributes."""

from collections.abc import Sequence

from fs.proto.speedwell_pb2 import Attributes, DirectoryEntry, StatisticsReply


class MetadataClient:
    """One nameserver's namespace. Thread-safe. Paths are `str | bytes`, absolute.

    Every method raises the errors of `fs.errors`: those the nameserver answered, InvalidName or
    NameTooLong before anything is sent, NameserverUnavailable (with the address) when it does not answer.
    Attributes that are returned may be shared with the cache: copy them before changing them.
    """

    def __init__(self, nameserver: str, cache_seconds: float = 1.0, *, cache_entries: int = 65536,
                 call_timeout_seconds: float = 5.0) -> None:
        raise NotImplementedError

    def lookup(self, path: str | bytes, fresh: bool = False) -> Attributes:
        raise NotImplementedError

    def lookup_inode(self, inode: int) -> Attributes:
        raise NotImplementedError

    def list(self, path: str | bytes) -> list[DirectoryEntry]:
        raise NotImplementedError

    def create(self, path: str | bytes, mode: int = 0o644, uid: int = 0, gid: int = 0,
               exclusive: bool = False, *, replication: int = 0, chunk_size: int = 0,
               client_host: str = "") -> tuple[Attributes, bool]:
        """The attributes, and whether this call made the file."""
        raise NotImplementedError

    def mkdir(self, path: str | bytes, mode: int = 0o755, uid: int = 0, gid: int = 0) -> Attributes:
        raise NotImplementedError

    def remove(self, path: str | bytes) -> None:
        raise NotImplementedError

    def rmdir(self, path: str | bytes) -> None:
        raise NotImplementedError

    def rename(self, source: str | bytes, destination: str | bytes, no_replace: bool = False) -> None:
        raise NotImplementedError

    def set_attributes(self, path: str | bytes, *, mode: int | None = None, uid: int | None = None,
                       gid: int | None = None, atime_ns: int | None = None,
                       mtime_ns: int | None = None) -> Attributes:
        raise NotImplementedError

    def truncate(self, path: str | bytes, client_host: str = "") -> Attributes:
        raise NotImplementedError

    def commit(self, inode: int, file_id: str, size_bytes: int, *, mtime_ns: int = 0,
               failed_replicas: Sequence[str] = ()) -> Attributes:
        raise NotImplementedError

    def statistics(self) -> StatisticsReply:
        raise NotImplementedError

    def forget(self, path: str | bytes) -> None:
        """Drop what is cached about `path`."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
