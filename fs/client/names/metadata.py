"""The nameserver as a client sees it, with a cache of attributes."""

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from speedwell.fs import paths, tracing
from speedwell.fs.client.names.attribute_cache import AttributeCache
from speedwell.fs.client.names.nameservers import Nameservers
from speedwell.fs.client.names.operator_requests import OperatorRequests
from speedwell.fs.client.names.posix_metadata import PosixMetadata, message
from speedwell.fs.errors import InvalidArgument, NoSuchFile
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.proto.speedwell_pb2 import Attributes, DirectoryEntry, StatisticsReply
from speedwell.fs.slots import BLOCK_SHIFT, block_of_request
from speedwell.fs.wire.connections import Connector


class Requester:
    """Somebody who has one change after the other carried out: the nameserver remembers the last one of each."""

    def __init__(self, block: int) -> None:
        """What the nameserver remembers lies in that block of the namespace (`speedwell.fs.slots`)."""
        self.number = block << BLOCK_SHIFT | secrets.randbits(BLOCK_SHIFT) or 1
        self.sequence = 0


class MetadataClient(PosixMetadata, OperatorRequests):
    """The namespace of a nameserver, or of several (`HOST:PORT,HOST:PORT`) of which one leads.

    Thread-safe. Paths are `str | bytes`, absolute.

    Every method raises the errors of `speedwell.fs.errors`: those the nameserver answered, InvalidName or
    NameTooLong before anything is sent, NameserverUnavailable (with the address) when it does not answer.
    A call waits up to `call_timeout_seconds` for a nameserver that is away, and is sent again when its
    connection broke. A change happens once however often it is sent: it has an id that the nameserver knows again.

    Attributes that are returned may be shared with the cache: copy them before changing them. The cache
    (`fs.client.names.attribute_cache`) holds up to `cache_entries` files for `cache_seconds`; 0 turns it off.
    """

    def __init__(self, nameserver: str, cache_seconds: float = 1.0, *, cache_entries: int = 65536,
                 call_timeout_seconds: float | None = None, local_host: str | None = None,
                 identity: Path | str | None = None) -> None:
        """Connects with the first call; not over the network if the nameserver is at `local_host`.

        `identity` is the directory of ours, where it is not known of the nameserver. Raises InvalidArgument for a
        malformed address or number, IdentityError."""
        if not cache_seconds >= 0:
            raise InvalidArgument(f"cache_seconds: {cache_seconds} is negative")
        self.cache_seconds = cache_seconds
        self._caching = cache_seconds > 0 and cache_entries > 0
        self._cache = AttributeCache(cache_seconds, cache_entries)
        self.fences: dict[int, Callable[[], tuple[int, int]]] = {}    # by inode
        self._requesters: defaultdict[int, list[Requester]] = defaultdict(list)      # by block
        self._nameservers = Nameservers(nameserver, call_timeout_seconds, local_host, identity)

    # -------------------------------------------------------------- reading

    def lookup(self, path: str | bytes, fresh: bool = False) -> Attributes:
        """Attributes of a file or directory, `fresh` from the nameserver or from the cache.

        Raises NoSuchFile, NotADirectory.
        """
        if isinstance(path, str):
            path = paths.normalise(path)
        if not fresh:
            cached = self._cache.get(path, time.monotonic())
            if cached is not None:      # under a path as it was sent
                return cached
        path = paths.normalise(path)
        directory = path if paths.is_inode(path) else paths.parent(path)
        moment, now = self._cache.moment(), time.monotonic()
        try:
            attributes: Attributes = self._call("Lookup", pb.LookupRequest(path=path)).attributes
        except NoSuchFile:
            self._cache.changed(path, None, now)
            raise
        if self._caching:
            self._cache.fill(directory, moment, [(path, attributes)], now)
        return attributes

    def known(self, path: bytes) -> Attributes | None:
        """What may be answered about `path` without asking."""
        return self._cache.get(path, time.monotonic())

    def changed_since(self, moment: int, keys: Iterable[bytes | int]) -> set[bytes | int]:
        """Those that were changed through this client since a `list_columns`: files and directories in which
        something was, by inode, and names, by path."""
        return self._cache.changed_since(moment, keys)

    def seconds_left(self, path: bytes) -> float:
        """For how long what was answered about `path` may be told to others."""
        return self._cache.seconds_left(path, time.monotonic())

    def forget_all(self) -> None:
        """Ask the nameserver again about everything: others may have changed it."""
        self._cache.clear()

    def lookup_inode(self, inode: int, *, to_append: bool = False) -> Attributes:
        """Attributes of an open file, never from the cache; `to_append` with a primary that can order
        appends, if there is one. Raises NoSuchFile if it was removed."""
        reply: pb.LookupReply = self._call("Lookup", pb.LookupRequest(inode=inode, to_append=to_append))
        return reply.attributes

    def list(self, path: str | bytes) -> list[DirectoryEntry]:
        """All entries with their attributes, in the order of their names' bytes.

        Raises NoSuchFile, NotADirectory.
        """
        path = paths.normalise(path)
        entries: list[DirectoryEntry] = []
        more = True
        while more:
            moment, now = self._cache.moment(), time.monotonic()
            reply = self._list(pb.ListRequest(path=path, after=entries[-1].name if entries else b""))
            if self._caching:
                self._cache.fill(path, moment, [(paths.join(path, entry.name), entry.attributes)
                                                for entry in reply.entries], now)
            entries.extend(reply.entries)
            more = reply.more
        return entries

    def list_columns(self, path: bytes, after: bytes = b"", *, statuses: bool,
                     limit: int = 0) -> tuple[pb.ListReply, int, float]:
        """Entries after `after` in columns, not cached; with the moment that they hold for (`changed_since`),
        and until when, in monotonic seconds, they may be told to others. With `limit` 0 as many as there may be."""
        moment, until = self._cache.moment(), self._cache.expiry(time.monotonic())
        request = pb.ListRequest(path=path, after=after, columns=True, statuses=statuses, limit=limit)
        return self._list(request), moment, until

    def _list(self, request: pb.ListRequest) -> pb.ListReply:
        moment, now = self._cache.moment(), time.monotonic()
        reply: pb.ListReply = self._call("List", request)
        if self._caching:
            above = request.path if paths.is_inode(request.path) else paths.parent(request.path)
            self._cache.fill(above, moment, [(request.path, reply.directory)], now)
        return reply

    @property
    def connect_data(self) -> Connector:
        """Makes connections to dataservers, over TLS where the nameserver says so."""
        return self._nameservers.connect_data

    @property
    def namespace(self) -> bytes:
        """The identity of the namespace; empty before the first call."""
        return self._nameservers.namespace

    def proof_key(self) -> pb.ProofKeyReply | None:
        """With what we prove to dataservers who we are; None where nobody asks."""
        key = self._call("ProofKey", pb.ProofKeyRequest()) if self._nameservers.has_identity else None
        return key if key is not None and key.client else None

    def statistics(self) -> StatisticsReply:
        """Counts, capacities, and every dataserver the nameserver knows."""
        reply: StatisticsReply = self._call("Statistics", pb.StatisticsRequest())
        return reply

    # -------------------------------------------------------------- administration

    def set_quota(self, path: str | bytes, *, max_bytes: int | None = None, max_files: int | None = None) -> bool:
        """Limit what may lie in a directory with all below it, or with neither limit end that; whether that
        changed anything. Raises NoSuchFile, NotADirectory, DeviceBusy (another one is being counted)."""
        request = message(pb.SetQuotaRequest, path=paths.normalise(path), max_bytes=max_bytes, max_files=max_files)
        return bool(self._call("SetQuota", request).changed)

    def quotas(self, path: str | bytes | None = None) -> Sequence[pb.QuotaRecord]:
        """The quotas that what is made in `path` counts toward, the innermost first; None: all there are."""
        wanted = b"" if path is None else paths.normalise(path)
        reply: pb.QuotasReply = self._call("Quotas", pb.QuotasRequest(path=wanted))
        return reply.quotas

    def set_trash(self, path: str | bytes, keep_ns: int) -> None:
        """Keep what is removed in a directory and below it for so long, 0: not at all."""
        self._call("SetTrash", message(pb.SetTrashRequest, path=paths.normalise(path), keep_ns=keep_ns))

    def trash_policies(self) -> Sequence[pb.TrashPolicy]:
        """Where what is removed is kept, and how long."""
        reply: pb.TrashReply = self._call("Trash", pb.TrashRequest(limit=1))
        return reply.policies

    def trash(self) -> Iterator[pb.TrashEntry]:
        """What is kept of removed files and directories, what goes first before the rest."""
        due_ns, inode, more = 0, 0, True
        while more:
            reply = self._call("Trash", pb.TrashRequest(after_due_ns=due_ns, after_inode=inode))
            yield from reply.entries
            more = reply.more
            if more:
                due_ns, inode = reply.entries[-1].due_ns, reply.entries[-1].attributes.inode

    def restore(self, entry: pb.TrashEntry, path: str | bytes) -> Attributes:
        """Give something that was removed a name. Raises NoSuchFile (it is gone), AlreadyExists, QuotaExceeded."""
        path = paths.normalise(path)
        request = pb.RestoreRequest(due_ns=entry.due_ns, inode=entry.attributes.inode, path=path)
        attributes: Attributes = self._change("Restore", request, path).attributes
        self._gone(path)
        return attributes

    def purge(self, entries: Sequence[pb.TrashEntry]) -> int:
        """Let go for good of up to 1000 entries of the trash; returns how many there still were."""
        request = pb.PurgeRequest(entries=[
            pb.RestoreRequest(due_ns=entry.due_ns, inode=entry.attributes.inode) for entry in entries])
        return int(self._once("Purge", request).purged)

    # -------------------------------------------------------------- making

    def create(self, path: str | bytes, mode: int = 0o644, uid: int = 0, gid: int = 0,
               exclusive: bool = False, *, replication: int = 0, chunk_size: int = 0,
               client_host: str = "", replicas: Sequence[str] = (),
               expected_bytes: int = 0, umask: int = 0) -> tuple[Attributes, bool]:
        """The attributes, and whether this call made the file; an existing one is returned as it is.

        Zero for `replication` or `chunk_size` (bytes) means the nameserver's default. `client_host` is
        the writer's address on the fabric, for placement; `replicas` names the dataservers to take, the
        primary first; `expected_bytes` is how much will be written at once, 0 if that is not known. `umask` is taken
        from `mode` unless the directory has a default access control list. Raises
        AlreadyExists (exclusive), IsADirectory, NoSuchFile, NotADirectory, NoReplicaAvailable, NoSpace,
        InvalidArgument.
        """
        path = paths.normalise(path)
        request = message(pb.CreateRequest, path=path, mode=mode, uid=uid, gid=gid, exclusive=exclusive,
                           replication=replication, chunk_size=chunk_size, client_host=client_host,
                           replicas=replicas, expected_size=expected_bytes, umask=umask)
        reply = self._change("Create", request, path)
        self._changed(path, reply.attributes)
        if reply.created:
            self._added(path, reply.attributes, is_directory=False)
        return reply.attributes, reply.created

    def mkdir(self, path: str | bytes, mode: int = 0o755, uid: int = 0, gid: int = 0, umask: int = 0) -> Attributes:
        """Raises AlreadyExists, NoSuchFile, NotADirectory."""
        path = paths.normalise(path)
        request = message(pb.MakeDirectoryRequest, path=path, mode=mode, uid=uid, gid=gid, umask=umask)
        attributes: Attributes = self._change("MakeDirectory", request, path).attributes
        self._changed(path, attributes)
        self._added(path, attributes, is_directory=True)
        return attributes

    # -------------------------------------------------------------- removing and renaming

    def remove(self, path: str | bytes, session: int = 0, uid: int | None = None) -> Attributes:
        """Remove one name of a file, for that user; returns its attributes then. With a `session`
        (`speedwell.fs.client.names.session`) a file that lost its last name lives until the session releases it.

        Raises NoSuchFile, NotADirectory, IsADirectory.
        """
        return self._remove(pb.RemoveRequest(path=paths.normalise(path), session=session, uid=uid))

    def rmdir(self, path: str | bytes, uid: int | None = None) -> Attributes:
        """Remove an empty directory; returns its attributes then. Raises NoSuchFile, NotADirectory,
        DirectoryNotEmpty, DeviceBusy."""
        return self._remove(pb.RemoveRequest(path=paths.normalise(path), directory=True, uid=uid))

    def _remove(self, request: pb.RemoveRequest) -> Attributes:
        reply = self._change("Remove", request, request.path)
        self._cache.changed(request.path, None, time.monotonic())
        self._changed(paths.parent(request.path), reply.directory)
        return self._lost_name(reply.removed)

    def _lost_name(self, attributes: Attributes) -> Attributes:
        left = attributes if self._caching and attributes.link_count else None
        self._cache.changed(paths.of_inode(attributes.inode), left, time.monotonic())
        return attributes

    def rename(self, source: str | bytes, destination: str | bytes, no_replace: bool = False, *,
               exchange: bool = False, session: int = 0, uid: int | None = None) -> Attributes | None:
        """As rename(2), atomically; with `no_replace` an existing destination is AlreadyExists, with `exchange`
        both swap their names. Returns what was replaced; a `session` holds it as with `remove`."""
        source, destination = paths.normalise(source, "source"), paths.normalise(destination, "destination")
        known = self._cache.get(source, time.monotonic())
        try:
            reply = self._once("Rename", pb.RenameRequest(
                source=source, destination=destination, no_replace=no_replace, exchange=exchange,
                session=session, uid=uid))
        finally:
            if known is not None and known.type != pb.DIRECTORY and not exchange:
                self._gone(source)
                self._gone(destination)
            else:
                for path in (source, destination):
                    self._gone(path)
                    self._cache.changed_tree(path)
        return self._lost_name(reply.replaced) if reply.replaced.inode else None

    # -------------------------------------------------------------- changing files

    def set_attributes(self, path: str | bytes, *, mode: int | None = None, uid: int | None = None,
                       gid: int | None = None, atime_ns: int | None = None,
                       mtime_ns: int | None = None, atime_now: bool = False,
                       mtime_now: bool = False) -> Attributes:
        """Only what is not None changes; `..._now` is the nameserver's time. Raises NoSuchFile, NotADirectory."""
        path = paths.normalise(path)
        request = message(pb.SetAttributesRequest, path=path, mode=mode, uid=uid, gid=gid,
                           atime_ns=atime_ns, mtime_ns=mtime_ns, atime_now=atime_now, mtime_now=mtime_now)
        attributes: Attributes = self._change("SetAttributes", request, path).attributes
        self._changed(path, attributes)
        return attributes

    def truncate(self, path: str | bytes, client_host: str = "", *, expected_bytes: int = 0,
                 if_empty: bool = False) -> Attributes:
        """Give a file (`if_empty`: that has no bytes) a new, empty content on newly placed replicas. `expected_bytes`
        is as of `create`; 0: as many as it has. Raises NoSuchFile, IsADirectory, NoReplicaAvailable, NoSpace."""
        path = paths.normalise(path)
        attributes: Attributes = self._change("Truncate", message(
            pb.TruncateRequest, path=path, client_host=client_host, expected_size=expected_bytes, if_empty=if_empty),
            path).attributes
        self._changed(path, attributes)
        return attributes

    def commit(self, inode: int, file_id: str, size_bytes: int, *, origin: str = "", mtime_ns: int = 0) -> Attributes:
        """Publish a length that every replica has acknowledged of a content with such an `origin`; returns the file's
        attributes, which may be of a later version.

        Raises NoSuchFile (removed meanwhile), StaleFile (truncated meanwhile).
        """
        session, generation = self.fence(inode)
        request = message(pb.CommitRequest, inode=inode, file_id=file_id, size=size_bytes, mtime_ns=mtime_ns,
                          origin=origin, session=session, generation=generation)
        attributes: Attributes = self._call("Commit", request).attributes
        self.learn(attributes)
        return attributes

    def learn(self, attributes: Attributes) -> None:
        """Take over attributes that a dataserver has from the nameserver: of a version just published."""
        if self._caching:
            self._cache.changed_inode(attributes, time.monotonic())

    def fence(self, inode: int) -> tuple[int, int]:
        """The session and generation under whose locks a file is changed, zeros without. Raises LocksLost."""
        fence = self.fences.get(inode)
        return (0, 0) if fence is None else fence()

    def sync(self) -> None:
        """Have the nameserver force all that it has answered to its disk. Raises StorageFailed."""
        self._call("Sync", pb.SyncRequest())

    def forget(self, path: str | bytes) -> None:
        """Drop what is cached about `path`."""
        self._cache.changed(paths.normalise(path), None, time.monotonic())

    def close(self) -> None:
        """Calls afterwards raise FileClosed."""
        self._nameservers.close()

    def __enter__(self) -> "MetadataClient":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    # -------------------------------------------------------------- cache

    def _changed(self, path: bytes, attributes: Attributes) -> None:
        self._cache.changed(path, attributes if self._caching else None, time.monotonic())

    def _added(self, path: bytes, attributes: Attributes, *, is_directory: bool) -> None:
        self._cache.entry_added(paths.parent(path), attributes, is_directory=is_directory)

    def _gone(self, path: bytes) -> None:
        """The directory above is dropped too: its times changed, to what is not known here."""
        now = time.monotonic()
        self._cache.changed(path, None, now)
        if not paths.is_inode(path):
            self._cache.changed(paths.parent(path), None, now)

    # -------------------------------------------------------------- calls

    def _change(self, method: str, request: Any, path: bytes) -> Any:
        """A call that changes `path`; if it fails, what is cached about the path is in doubt."""
        try:
            return self._once(method, request)
        except BaseException:
            self._gone(path)
            raise

    def _once(self, method: str, request: Any) -> Any:
        """A call that is carried out at most once, though it may be sent several times."""
        block = block_of_request(request)
        idle = self._requesters[block]
        try:
            requester = idle.pop()
        except IndexError:
            requester = Requester(block)
        requester.sequence += 1
        request.id.requester, request.id.sequence = requester.number, requester.sequence
        try:
            return self._call(method, request)
        finally:
            idle.append(requester)

    def _call(self, method: str, request: Any) -> Any:
        with tracing.asking(method):
            return self._nameservers.call(method, request)
