"""What is kept of removed files and directories."""

from collections.abc import Iterator, Sequence

from speedwell.fs import paths
from speedwell.fs.client.names.attribute_cache import AttributeCache
from speedwell.fs.client.names.requests import Requests, message
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.proto.speedwell_pb2 import Attributes


class Trash:
    """`MetadataClient.trash`, whose docstring says what every method raises."""

    def __init__(self, requests: Requests, cache: AttributeCache) -> None:
        self._requests = requests
        self._cache = cache

    def keep(self, path: str | bytes, keep_ns: int) -> None:
        """Keep what is removed in a directory and below it for so long, 0: not at all."""
        self._requests.ask("SetTrash", message(pb.SetTrashRequest, path=paths.normalise(path), keep_ns=keep_ns))

    def policies(self) -> Sequence[pb.TrashPolicy]:
        """Where what is removed is kept, and how long."""
        reply: pb.TrashReply = self._requests.ask("Trash", pb.TrashRequest(limit=1))
        return reply.policies

    def entries(self) -> Iterator[pb.TrashEntry]:
        """What there is, what goes first before the rest."""
        due_ns, inode, more = 0, 0, True
        while more:
            reply = self._requests.ask("Trash", pb.TrashRequest(after_due_ns=due_ns, after_inode=inode))
            yield from reply.entries
            more = reply.more
            if more:
                due_ns, inode = reply.entries[-1].due_ns, reply.entries[-1].attributes.inode

    def restore(self, entry: pb.TrashEntry, path: str | bytes) -> Attributes:
        """Give something that was removed a name. Raises NoSuchFile (it is gone), AlreadyExists, QuotaExceeded."""
        path = paths.normalise(path)
        request = pb.RestoreRequest(due_ns=entry.due_ns, inode=entry.attributes.inode, path=path)
        attributes: Attributes = self._requests.change("Restore", request, path).attributes
        self._cache.gone(path)
        return attributes

    def purge(self, entries: Sequence[pb.TrashEntry]) -> int:
        """Let go for good of up to 1000 entries; returns how many there still were."""
        request = pb.PurgeRequest(entries=[
            pb.RestoreRequest(due_ns=entry.due_ns, inode=entry.attributes.inode) for entry in entries])
        return int(self._requests.once("Purge", request).purged)
