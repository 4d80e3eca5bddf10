"""The filesystem as a program sees it: names from the nameserver, bytes from the dataservers."""

import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from speedwell.fs import paths
from speedwell.fs.client.append.appender import Appender
from speedwell.fs.client.append.durability import force_to_disk
from speedwell.fs.client.bulk import bytes_left, receive_file, send_file
from speedwell.fs.client.change.version import Changes, publish_changes
from speedwell.fs.client.context import DEFAULT_PARTS, ClientContext
from speedwell.fs.client.metrics import Metrics
from speedwell.fs.client.names.links import follow
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.client.read.cached_reader import CachedReader
from speedwell.fs.client.read.disk_cache import DEFAULT_CAPACITY_BYTES, DiskCache
from speedwell.fs.client.read.reader import Reader
from speedwell.fs.errors import (
    FileClosed,
    InvalidArgument,
    IsADirectory,
    NoReplicaAvailable,
    NoSuchFile,
    NotADirectory,
    NotSupported,
    ReadFailed,
    SpeedwellError,
)
from speedwell.fs.limits import LEAST_ADVISED_BYTES
from speedwell.fs.proto.speedwell_pb2 import (
    DIRECTORY,
    REGULAR,
    SYMBOLIC_LINK,
    Attributes,
    DirectoryEntry,
    StatisticsReply,
)
from speedwell.fs.tracing import Span
from speedwell.fs.wire.channel import ConnectionLost

_ASKED_DATASERVERS = 3

Progress = Callable[[int], None]
"""Called with the number of bytes moved since the last call."""


class Client:
    """A connection to one Speedwell installation, shared by any number of threads.

    `nameserver` is "host:port". `controller` is the URL of the SDN controller, or None: then every read
    takes the nearest replica. `local_host` is this host's address on the fabric: it tells which replica is
    near and where new files are placed; without it the address is found from the route to the replica.
    Reads shorter than `steer_min_bytes` are not worth a request to the controller; one that waited
    `controller_timeout_seconds` in all goes on without it. A long read comes from up to `most_parts` replicas
    at once where the controller expects that to be faster.

    `strong` makes the reads of all files strong, as `open_read` says. `identity` is the directory of the caller's key
    and certificates; without it that in SPEEDWELL_IDENTITY, or what `speedwell up` made on this machine.

    Readers keep what they read in `cache_directory`, up to `cache_bytes`, if there is one; strong ones do not.

    Paths are absolute, `str` or `bytes`. Methods raise the errors of `speedwell.fs.errors`.
    """

    def __init__(self, nameserver: str, *, controller: str | None = None, local_host: str | None = None,
                 replica_policy: str | None = None, path_policy: str | None = None,
                 metadata_cache_seconds: float = 1.0, steer_min_bytes: int = 262144,
                 controller_timeout_seconds: float = 0.2, most_parts: int = DEFAULT_PARTS,
                 strong: bool = False, cache_directory: Path | None = None,
                 cache_bytes: int = DEFAULT_CAPACITY_BYTES, identity: Path | str | None = None) -> None:
        """Connects to nothing yet. Raises InvalidArgument for a malformed address or URL, and for a cache directory
        that is in use or open to others, IdentityError."""
        self._metadata = MetadataClient(nameserver, metadata_cache_seconds, local_host=local_host, identity=identity)
        self._context = ClientContext(
            self._metadata, controller=controller, local_host=local_host, replica_policy=replica_policy,
            path_policy=path_policy, steer_min_bytes=steer_min_bytes,
            controller_timeout_seconds=controller_timeout_seconds, most_parts=most_parts, identity=identity)
        self._cache = (None if cache_directory is None else
                       DiskCache(cache_directory, cache_bytes, self._context.metrics))
        self._local_host = local_host or ""
        self.strong = strong
        self._closed = False

    @property
    def metrics(self) -> Metrics:
        """Counters since this client was made (`controller_fallbacks`, `bytes_read`, ...)."""
        return self._context.metrics

    @property
    def metadata(self) -> MetadataClient:
        """The nameserver, for what only a mount asks of it."""
        return self._metadata

    # ------------------------------------------------------------------ names

    def lookup(self, path: str | bytes, fresh: bool = False) -> Attributes:
        """The attributes of `path`; at most `metadata_cache_seconds` old unless `fresh`.

        Raises NoSuchFile, NotADirectory, NameserverUnavailable.
        """
        return self._metadata.lookup(path, fresh)

    def follow(self, path: str | bytes, *, last: bool = True) -> bytes:
        """Where `path` leads: a path without symbolic links; `last`: also where the last name is a link.

        What it leads to need not exist. Raises NoSuchFile (a directory on the way), NotADirectory,
        TooManySymbolicLinks.
        """
        path = paths.normalise(path)
        try:
            if self.lookup(path, fresh=True).type != SYMBOLIC_LINK or not last:
                return path
        except NoSuchFile:
            return path
        except NotADirectory:
            pass    # a link may be on the way
        return follow(self._metadata, path, last=last)

    def lookup_inode(self, inode: int) -> Attributes:
        """The attributes of a file by its inode, never from a cache. Raises NoSuchFile if it was removed."""
        return self._metadata.lookup_inode(inode)

    def list(self, path: str | bytes) -> list[DirectoryEntry]:
        """All entries of a directory, sorted by name, each with its attributes."""
        return self._metadata.list(path)

    def create(self, path: str | bytes, mode: int = 0o644, uid: int | None = None, gid: int | None = None,
               exclusive: bool = False, *, replication: int = 0, chunk_size: int = 0,
               replicas: Sequence[str] = (), expected_bytes: int = 0, umask: int = 0) -> Attributes:
        """Make an empty file; an existing one is returned as it is, or is AlreadyExists if `exclusive`.

        `uid` and `gid` default to those of this process. `replication` and `chunk_size` (bytes) default
        to what the nameserver was started with. `replicas` names the dataservers that are to hold a new file,
        the primary first, instead of the nameserver's choice; raises InvalidArgument for an unknown one.
        `expected_bytes`, how much will be written at once, lets the controller choose where large files go.
        """
        is_placed_by_controller = expected_bytes >= LEAST_ADVISED_BYTES
        writer = self._context.address_on_fabric() if is_placed_by_controller else self._local_host
        attributes, _ = self._metadata.create(
            path, mode, os.geteuid() if uid is None else uid, os.getegid() if gid is None else gid, exclusive,
            replication=replication, chunk_size=chunk_size, client_host=writer, replicas=replicas,
            expected_bytes=expected_bytes, umask=umask)
        return attributes

    def mkdir(self, path: str | bytes, mode: int = 0o755, uid: int | None = None,
              gid: int | None = None, umask: int = 0) -> Attributes:
        """Make a directory. Raises AlreadyExists, NoSuchFile (the parent), NotADirectory."""
        return self._metadata.mkdir(path, mode, os.geteuid() if uid is None else uid,
                                    os.getegid() if gid is None else gid, umask)

    def remove(self, path: str | bytes) -> None:
        """Remove a file. Readers that have it open can finish within the grace period."""
        self._metadata.remove(path)

    def rmdir(self, path: str | bytes) -> None:
        """Remove an empty directory. Raises DirectoryNotEmpty."""
        self._metadata.rmdir(path)

    def rename(self, source: str | bytes, destination: str | bytes, no_replace: bool = False) -> None:
        """Move `source` to `destination` in one step, replacing a file (or empty directory) there
        unless `no_replace` (AlreadyExists)."""
        self._metadata.rename(source, destination, no_replace)

    def set_attributes(self, path: str | bytes, *, mode: int | None = None, uid: int | None = None,
                       gid: int | None = None, atime_ns: int | None = None,
                       mtime_ns: int | None = None) -> Attributes:
        """Change the attributes that are not None; times are nanoseconds since the epoch."""
        return self._metadata.set_attributes(path, mode=mode, uid=uid, gid=gid, atime_ns=atime_ns,
                                             mtime_ns=mtime_ns)

    def truncate(self, path: str | bytes) -> Attributes:
        """Give the file a new, empty content; readers that have the old one open keep it."""
        return self._metadata.truncate(path, self._local_host)

    def preallocate(self, path: str | bytes, expected_bytes: int) -> Attributes:
        """Place an empty file anew, as one that is about to get so many bytes. One that has any, and one that is to
        stay small, is left as it is."""
        if expected_bytes < LEAST_ADVISED_BYTES:
            return self.lookup(path)
        return self._metadata.truncate(path, self._context.address_on_fabric(), expected_bytes=expected_bytes,
                                       if_empty=True)

    def statistics(self) -> StatisticsReply:
        """Files, directories, capacity and the state of every dataserver."""
        return self._metadata.statistics()

    def require_dataservers(self) -> None:
        """Check that this machine can reach the dataservers that live, by asking some of them who they are.

        Raises NoReplicaAvailable if none of those answers as itself.
        """
        alive = [status.server for status in self.statistics().dataservers if status.server.alive]
        refused: Exception | None = None
        for server in alive[:_ASKED_DATASERVERS]:
            try:
                self._context.connections.give_back(server.host, server.port, self._context.connection_to(server))
                return
            except ConnectionLost as error:
                refused = error
        if refused is not None:
            raise NoReplicaAvailable(str(refused))

    # ------------------------------------------------------------------ content

    def open_read(self, path: str | bytes, attributes: Attributes | None = None,
                  strong: bool | None = None) -> Reader:
        """Open a file for reading, with attributes fetched now (close-to-open consistency).

        With `strong` (default: the client's) each read of the last chunk and beyond asks the primary first, and
        sees every append that was acknowledged before, by whomever. Otherwise the reader sees the appends in
        their order, but maybe not the last ones.

        `attributes`, if the caller has those of the version it wants, save a look-up.
        Raises NoSuchFile, IsADirectory, NameserverUnavailable.
        """
        self._require_open()
        if attributes is None:
            with Span("open"):
                return self.open_read(path, self._file(path, fresh=True), strong)
        path, strong = paths.normalise(path), self.strong if strong is None else strong
        if self._cache is not None and not strong:
            return CachedReader(self._cache, self._context, attributes, path)
        return Reader(self._context, attributes, path, strong)

    def open_append(self, path: str | bytes, attributes: Attributes | None = None) -> Appender:
        """Open an existing file for appending.

        `attributes`, if the caller just got them from `create` or `truncate`, save a look-up.
        Raises NoSuchFile, IsADirectory, NameserverUnavailable.
        """
        self._require_open()
        if attributes is None:
            with Span("open"):
                return self.open_append(path, self._file(path, fresh=True))
        return Appender(self._context, attributes, attributes.path or paths.normalise(path))

    def append(self, path: str | bytes, data: bytes) -> int:
        """Append `data` as one record: it is never torn or interleaved with records of other clients.

        Returns the offset at which the record begins (Mayflower, section 3.3.2: atomic append).
        Raises AppendFailed, NoSpace, NoReplicaAvailable: then no reader sees any of it.
        """
        with self.open_append(path) as appender:
            return appender.append_record(data)

    def change(self, path: str | bytes, changes: Changes, attributes: Attributes | None = None) -> Attributes:
        """Change a file anywhere, in one step that readers see whole or not at all; returns its attributes then.

        Readers that have the old version open keep it. `attributes` save a look-up.
        Raises WriteFailed, NoSpace, NoReplicaAvailable: then nothing of it is visible. NoSuchFile, IsADirectory.
        """
        return self.change_from(path, changes, attributes or self._file(path, fresh=True))[0]

    def change_from(self, path: str | bytes, changes: Changes, attributes: Attributes) -> tuple[Attributes, bool]:
        """Like `change`; also whether the version in `attributes` was still the newest one. If not, the content
        has what others changed meanwhile too."""
        self._require_open()
        with Span("change"):
            return publish_changes(self._context, attributes, paths.normalise(path), changes)

    def sync(self, attributes: Attributes) -> None:
        """As fsync(2) does: have what was acknowledged of a file, and all changes of names, forced to the disks of
        its replicas and of the nameserver, unless the policy is never. `attributes` as of the last flush.

        Raises StorageFailed, NameserverUnavailable.
        """
        self._require_open()
        with Span("sync"):
            force_to_disk(self._context, attributes)

    def fetch(self, path: str | bytes, destination_fd: int, progress: Progress | None = None) -> int:
        """Write the whole file to a descriptor (file, pipe or socket) and return its size in bytes.

        Raises ReadFailed when no replica could deliver the rest, OSError for the destination's own errors.
        """
        self._require_open()
        with Span("read"):
            file = self._file(path, fresh=True)
            try:
                return receive_file(self._context, file, destination_fd, progress)
            except (NoReplicaAvailable, ReadFailed) as error:
                error.args = (f"{os.fsdecode(path)}: {error}",)     # below here a content has no name
                raise

    def store(self, path: str | bytes, source_fd: int, progress: Progress | None = None, *,
              mode: int = 0o644, exclusive: bool = False, replicas: Sequence[str] = ()) -> int:
        """Make `path` hold what `source_fd` holds from its position to its end; returns the bytes moved.

        The content gets its name only when it is complete, so a failure leaves an existing file as it
        was. `replicas` names the dataservers to hold it, the primary first. Raises AlreadyExists if
        `exclusive`, NoSpace, AppendFailed, OSError for the source's errors.
        """
        self._require_open()
        target = paths.normalise(path)
        if target == paths.ROOT:
            raise IsADirectory("/ is a directory")
        with Span("write"):
            return self._store(target, source_fd, progress, mode, exclusive, replicas)

    def _store(self, target: bytes, source_fd: int, progress: Progress | None, mode: int, exclusive: bool,
               replicas: Sequence[str]) -> int:
        hidden = b".%b.%b" % (paths.name(target)[:200], secrets.token_hex(8).encode())
        partial = paths.join(paths.parent(target), hidden)
        attributes = self.create(partial, mode, exclusive=True, replicas=replicas,
                                 expected_bytes=bytes_left(source_fd))
        try:
            with self.open_append(partial, attributes) as appender:
                stored_bytes = send_file(appender, source_fd, progress)
            self.rename(partial, target, no_replace=exclusive)
        except SpeedwellError as error:
            self._discard(partial)
            raise type(error)(str(error).replace(paths.display(partial), paths.display(target))) from None
        except BaseException:
            self._discard(partial)
            raise
        return stored_bytes

    def close(self) -> None:
        """Close all connections. Open readers and appenders stop working."""
        self._closed = True
        self._context.close()
        self._metadata.close()
        if self._cache is not None:
            self._cache.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------ private

    def _file(self, path: str | bytes, fresh: bool) -> Attributes:
        attributes = self._metadata.lookup(path, fresh)
        if attributes.type == DIRECTORY:
            raise IsADirectory(f"{paths.display(paths.normalise(path))} is a directory")
        if attributes.type != REGULAR:
            raise NotSupported(f"{paths.display(paths.normalise(path))} is a symbolic link or a special file: only "
                               "a mount opens those")
        return attributes

    def _discard(self, path: bytes) -> None:
        try:
            self._metadata.remove(path)
        except SpeedwellError:
            return  # the error that brought us here is the one to report

    def _require_open(self) -> None:
        if self._closed:
            raise FileClosed("the client is closed")


__all__ = ["Client", "InvalidArgument", "Progress"]
