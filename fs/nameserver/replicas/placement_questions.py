"""Which files the controller is asked about before they are placed: those that are expected to be large.

How much will be written is what the client says, else what the directory's extended attribute
`user.speedwell.expected_size` says, else the mean of the files that are in the directory already. A file that gets a
new content is expected to be as long as before. Small files never ask.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from speedwell.fs import paths
from speedwell.fs.errors import SpeedwellError
from speedwell.fs.limits import LEAST_ADVISED_BYTES, MAX_FILE_BYTES
from speedwell.fs.nameserver.namespace.namespace_records import Inode
from speedwell.fs.nameserver.namespace.tree import Tree
from speedwell.fs.nameserver.replicas.placement import evenly_filled
from speedwell.fs.nameserver.replicas.placement_advice import PlacementAdvice
from speedwell.fs.nameserver.replicas.registry import Registry
from speedwell.fs.nameserver.service import request_fields as requests
from speedwell.fs.nameserver.service.settings import Settings
from speedwell.fs.proto import speedwell_pb2 as pb

EXPECTED_SIZE = b"user.speedwell.expected_size"
"""Of a directory: the bytes, as decimal digits, that a new file there is expected to get."""
SAMPLED_ENTRIES = 32
SAMPLED_SECONDS = 10.0
"""For so long the expectation of a directory holds."""
MAX_DIRECTORIES = 4096


class PlacementQuestions:
    """Its methods wait for the controller: not to be called with the guard."""

    def __init__(self, advice: PlacementAdvice | None, guard: AbstractContextManager[bool], tree: Tree,
                 registry: Registry, settings: Settings, clock_seconds: Callable[[], float]) -> None:
        self.advice = advice
        self._guard = guard
        self._tree = tree
        self._registry = registry
        self._settings = settings
        self._clock_seconds = clock_seconds
        self._expected: OrderedDict[bytes, tuple[float, int]] = OrderedDict()

    @property
    def counts(self) -> Mapping[str, int]:
        """How many files the controller placed, and how many it did not, and why."""
        return self.advice.counts if self.advice else {}

    def create(self, request: pb.CreateRequest) -> Sequence[int]:
        """The numbers of the dataservers that the controller would take for a new file; none if it is not asked, or
        has no advice."""
        if self.advice is None or request.replicas:
            return ()
        return self._ask(requests.replication(request.replication, self._settings.replication), request.client_host,
                         request.expected_size or self._usual_size(request.path))

    def truncate(self, request: pb.TruncateRequest) -> Sequence[int]:
        """The same for the new content of a file."""
        if self.advice is None:
            return ()
        try:
            with self._guard:
                content = self._tree.lookup(request.path).content
        except SpeedwellError:
            return ()
        if content is None or (request.if_empty and content.size_bytes):
            return ()
        return self._ask(content.replication, request.client_host, request.expected_size or content.size_bytes)

    def _ask(self, replication: int, writer_host: str, size_bytes: int) -> Sequence[int]:
        if self.advice is None or size_bytes < LEAST_ADVISED_BYTES:
            return ()
        with self._guard:
            candidates = evenly_filled(self._registry.candidates(self._clock_seconds()), replication)
        chosen = self.advice.destinations(candidates, replication, writer_host, min(size_bytes, MAX_FILE_BYTES))
        return [candidate.number for candidate in chosen or ()]

    def _usual_size(self, path: bytes) -> int:
        """How many bytes a new file is expected to get where nobody says so. Raises InvalidName, NameTooLong."""
        now = self._clock_seconds()
        directory = paths.parent(requests.path(path))
        with self._guard:
            sampled_at, size_bytes = self._expected.get(directory, (float("-inf"), 0))
            if now - sampled_at < SAMPLED_SECONDS:
                return size_bytes
            try:
                inode, names, _ = self._tree.names(directory, b"", SAMPLED_ENTRIES)
            except SpeedwellError:
                return 0
            size_bytes = _said(inode) or _mean([self._tree.inode(number) for _, _, number in names])
            self._expected[directory] = now, size_bytes
            self._expected.move_to_end(directory)
            while len(self._expected) > MAX_DIRECTORIES:
                self._expected.popitem(last=False)
        return size_bytes


def _said(directory: Inode) -> int:
    value = directory.extended_attributes.get(EXPECTED_SIZE, b"").strip()
    return min(int(value), MAX_FILE_BYTES) if value.isdigit() and len(value) < 20 else 0


def _mean(inodes: Sequence[Inode]) -> int:
    """Of the files that have any bytes: the others are about to be written."""
    sizes = [size for inode in inodes if inode.content is not None and (size := inode.content.size_bytes)]
    return sum(sizes) // len(sizes) if sizes else 0
