"""The nameserver as a client sees it, with a cache of attributes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from speedwell.fs import paths
from speedwell.fs.client.names.attribute_cache import AttributeCache, Moment
from speedwell.fs.client.names.nameservers import Nameservers
from speedwell.fs.client.names.namespace_copies import NamespaceCopies
from speedwell.fs.client.names.operator_requests import OperatorRequests
from speedwell.fs.client.names.posix_metadata import PosixMetadata
from speedwell.fs.client.names.requests import Requests, message
from speedwell.fs.client.names.trash import Trash
from speedwell.fs.errors import InvalidArgument, NoSuchFile
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.proto.speedwell_pb2 import Attributes, DirectoryEntry, StatisticsReply


class MetadataClient:
    """The namespace of a nameserver, or of several (`HOST:PORT,HOST:PORT`) of which one leads.

    Thread-safe. Paths are `str | bytes`, absolute.

    Every method raises the errors of `speedwell.fs.errors`: those the nameserver answered, InvalidName or
    NameTooLong before anything is sent, NameserverUnavailable (with the address) when it does not answer.
    A call waits up to `call_timeout_seconds` for a nameserver that is away, and is sent again when its
    connection broke. A change happens once however often it is sent: it has an id that the nameserver knows again.

    Attributes that are returned may be shared with the cache: copy them before changing them. The `cache` holds up
    to `cache_entries` files for `cache_seconds`; 0 turns it off. What not every program needs is asked of a part:
    `posix`, `operator`, `trash`, `copies`.
    """

    def __init__(self, nameserver: str, cache_seconds: float = 1.0, *, cache_entries: int = 65536,
                 call_timeout_seconds: float | None = None, local_host: str | None = None,
                 identity: Path | str | None = None) -> None:
        """Connects with the first call; not over the network if the nameserver is at `local_host`.

        `identity` is the directory of ours, where it is not known of the nameserver. Raises InvalidArgument for a
        malformed address or number, IdentityError."""
        if not cache_seconds >= 0:
            raise InvalidArgument(f"cache_seconds: {cache_seconds} is negative")
        self.nameservers = Nameservers(nameserver, call_timeout_seconds, local_host, identity)
        self.cache = AttributeCache(cache_seconds, cache_entries)
        self.requests = Requests(self.nameservers, self.cache)
        self.posix = PosixMetadata(self.requests, self.cache)
        self.operator = OperatorRequests(self.requests.ask)
        self.trash = Trash(self.requests, self.cache)
        self.copies = NamespaceCopies(self.requests.ask)
        self.fences: dict[int, Callable[[], tuple[int, int]]] = {}    # by inode

    # -------------------------------------------------------------- reading

    def lookup(self, path: str | bytes, fresh: bool = False) -> Attributes:
        """Attributes of a file or directory, `fresh` from the nameserver or from the cache.

        Raises NoSuchFile, NotADirectory.
        """
        if isinstance(path, str):
            path = paths.normalise(path)
        if not fresh:
            cached = self.cache.get(path)
            if cached is not None:      # under a path as it was sent
                return cached
        path = paths.normalise(path)
        directory = path if paths.is_inode(path) else paths.parent(path)
        moment = self.cache.moment()
        try:
            attributes: Attributes = self.requests.ask("Lookup", pb.LookupRequest(path=path)).attributes
        except NoSuchFile:
            self.cache.changed(path)
            raise
        self.cache.fill(directory, moment, ((path, attributes),))
        return attributes

    def lookup_inode(self, inode: int, *, to_append: bool = False) -> Attributes:
        """Attributes of an open file, never from the cache; `to_append` with a primary that can order
        appends, if there is one. Raises NoSuchFile if it was removed."""
        reply: pb.LookupReply = self.requests.ask("Lookup", pb.LookupRequest(inode=inode, to_append=to_append))
        return reply.attributes

    def list(self, path: str | bytes) -> list[DirectoryEntry]:
        """All entries with their attributes, in the order of their names' bytes.

        Raises NoSuchFile, NotADirectory.
        """
        path = paths.normalise(path)
        entries: list[DirectoryEntry] = []
        more = True
        while more:
            reply, moment = self._list(pb.ListRequest(path=path, after=entries[-1].name if entries else b""))
            self.cache.fill(path, moment, ((paths.join(path, entry.name), entry.attributes)
                                           for entry in reply.entries))
            entries.extend(reply.entries)
            more = reply.more
        return entries

    def list_columns(self, path: bytes, after: bytes = b"", *, statuses: bool,
                     limit: int = 0) -> tuple[pb.ListReply, Moment]:
        """Entries after `after` in columns, not cached; with the moment that they hold for. With `limit` 0 as many
        as there may be."""
        return self._list(pb.ListRequest(path=path, after=after, columns=True, statuses=statuses, limit=limit))

    def _list(self, request: pb.ListRequest) -> tuple[pb.ListReply, Moment]:
        moment = self.cache.moment()
        reply: pb.ListReply = self.requests.ask("List", request)
        above = request.path if paths.is_inode(request.path) else paths.parent(request.path)
        self.cache.fill(above, moment, ((request.path, reply.directory),))
        return reply, moment

    def proof_key(self) -> pb.ProofKeyReply | None:
        """With what we prove to dataservers who we are; None where nobody asks."""
        key = self.requests.ask("ProofKey", pb.ProofKeyRequest()) if self.nameservers.has_identity else None
        return key if key is not None and key.client else None

    def statistics(self) -> StatisticsReply:
        """Counts, capacities, and every dataserver the nameserver knows."""
        reply: StatisticsReply = self.requests.ask("Statistics", pb.StatisticsRequest())
        return reply

    def quotas(self, path: str | bytes | None = None) -> Sequence[pb.QuotaRecord]:
        """The quotas that what is made in `path` counts toward, the innermost first; None: all there are."""
        wanted = b"" if path is None else paths.normalise(path)
        reply: pb.QuotasReply = self.requests.ask("Quotas", pb.QuotasRequest(path=wanted))
        return reply.quotas

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
        reply = self.requests.change("Create", request, path)
        if reply.created:
            self.cache.made(path, reply.attributes)
        else:
            self.cache.changed(path, reply.attributes)
        return reply.attributes, reply.created

    def mkdir(self, path: str | bytes, mode: int = 0o755, uid: int = 0, gid: int = 0, umask: int = 0) -> Attributes:
        """Raises AlreadyExists, NoSuchFile, NotADirectory."""
        path = paths.normalise(path)
        request = message(pb.MakeDirectoryRequest, path=path, mode=mode, uid=uid, gid=gid, umask=umask)
        attributes: Attributes = self.requests.change("MakeDirectory", request, path).attributes
        self.cache.made(path, attributes, is_directory=True)
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
        reply: pb.RemoveReply = self.requests.change("Remove", request, request.path)
        self.cache.changed(request.path)
        self.cache.changed(paths.parent(request.path), reply.directory)
        self.cache.lost_name(reply.removed)
        return reply.removed

    def rename(self, source: str | bytes, destination: str | bytes, no_replace: bool = False, *,
               exchange: bool = False, session: int = 0, uid: int | None = None) -> Attributes | None:
        """As rename(2), atomically; with `no_replace` an existing destination is AlreadyExists, with `exchange`
        both swap their names. Returns what was replaced; a `session` holds it as with `remove`."""
        source, destination = paths.normalise(source, "source"), paths.normalise(destination, "destination")
        known = self.cache.get(source)
        try:
            reply: pb.RenameReply = self.requests.once("Rename", pb.RenameRequest(
                source=source, destination=destination, no_replace=no_replace, exchange=exchange,
                session=session, uid=uid))
        finally:
            if known is not None and known.type != pb.DIRECTORY and not exchange:
                self.cache.gone(source)
                self.cache.gone(destination)
            else:
                for path in (source, destination):
                    self.cache.gone(path)
                    self.cache.changed_tree(path)
        if not reply.replaced.inode:
            return None
        self.cache.lost_name(reply.replaced)
        return reply.replaced

    # -------------------------------------------------------------- changing files

    def set_attributes(self, path: str | bytes, *, mode: int | None = None, uid: int | None = None,
                       gid: int | None = None, atime_ns: int | None = None,
                       mtime_ns: int | None = None, atime_now: bool = False,
                       mtime_now: bool = False) -> Attributes:
        """Only what is not None changes; `..._now` is the nameserver's time. Raises NoSuchFile, NotADirectory."""
        path = paths.normalise(path)
        request = message(pb.SetAttributesRequest, path=path, mode=mode, uid=uid, gid=gid,
                           atime_ns=atime_ns, mtime_ns=mtime_ns, atime_now=atime_now, mtime_now=mtime_now)
        attributes: Attributes = self.requests.change("SetAttributes", request, path).attributes
        self.cache.changed(path, attributes)
        return attributes

    def truncate(self, path: str | bytes, client_host: str = "", *, expected_bytes: int = 0,
                 if_empty: bool = False) -> Attributes:
        """Give a file (`if_empty`: that has no bytes) a new, empty content on newly placed replicas. `expected_bytes`
        is as of `create`; 0: as many as it has. Raises NoSuchFile, IsADirectory, NoReplicaAvailable, NoSpace."""
        path = paths.normalise(path)
        attributes: Attributes = self.requests.change("Truncate", message(
            pb.TruncateRequest, path=path, client_host=client_host, expected_size=expected_bytes, if_empty=if_empty),
            path).attributes
        self.cache.changed(path, attributes)
        return attributes

    def commit(self, inode: int, file_id: str, size_bytes: int, *, origin: str = "", mtime_ns: int = 0) -> Attributes:
        """Publish a length that every replica has acknowledged of a content with such an `origin`; returns the file's
        attributes, which may be of a later version.

        Raises NoSuchFile (removed meanwhile), StaleFile (truncated meanwhile).
        """
        session, generation = self.fence(inode)
        request = message(pb.CommitRequest, inode=inode, file_id=file_id, size=size_bytes, mtime_ns=mtime_ns,
                          origin=origin, session=session, generation=generation)
        attributes: Attributes = self.requests.ask("Commit", request).attributes
        self.cache.changed_inode(attributes)
        return attributes

    def fence(self, inode: int) -> tuple[int, int]:
        """The session and generation under whose locks a file is changed, zeros without. Raises LocksLost."""
        fence = self.fences.get(inode)
        return (0, 0) if fence is None else fence()

    def sync(self) -> None:
        """Have the nameserver force all that it has answered to its disk. Raises StorageFailed."""
        self.requests.ask("Sync", pb.SyncRequest())

    def close(self) -> None:
        """Calls afterwards raise FileClosed."""
        self.nameservers.close()

    def __enter__(self) -> "MetadataClient":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()
