"""The reads in flight and their parts, found by read or by connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ryu.lib import hub

from speedwell.controller.errors import ControllerError
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Path
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest


class UnknownRead(ControllerError):
    """No read with this id is in flight."""

    status = 404

    def __init__(self, read_id: str) -> None:
        super().__init__(f"no read {read_id} is in flight: it ended, or never was")


class UnknownPart(ControllerError):
    """A read in flight does not have this part, or it has ended."""

    status = 404

    def __init__(self, read_id: str, number: int) -> None:
        super().__init__(f"read {read_id} has no part {number} in flight: it ended, or never was")


class TooManyWaiting(ControllerError):
    """So many clients wait for news of their reads that no more can."""

    status = 503
    title = "Too many clients wait already"

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} clients wait for news of their reads already: ask without wait_seconds, or later")


class ConnectionInUse(ControllerError):
    """The connection that a read is to use carries another client's read."""

    status = 409
    title = "The connection is in use"

    def __init__(self, connection: FiveTuple) -> None:
        super().__init__(
            f"a read that somebody else asked for runs from {connection.source}:{connection.source_port} to "
            f"{connection.destination}:{connection.destination_port}: bind another port")


@dataclass(frozen=True)
class ReadRequest:
    """A read as a client asks for it. Policies may be None: as the controller is set.

    Part i ends at `client_ports[i]`; there are at most `most_parts` (None: as many as there are ports).
    """

    client: str
    client_ports: Sequence[int]
    replicas: Sequence[Replica]
    size_bytes: int
    file_id: str | None = None
    replica_policy: str | None = None
    path_policy: str | None = None
    most_parts: int | None = None
    follows: bool = False
    """Whether the client hears of parts that come later, so that the read may wait or be divided anew."""
    requester: str | None = None
    """The address that it was asked from; on a management network not the client's own."""
    placement_id: str | None = None
    """Whose bytes these are: then it is no read, but a transfer to its `client` that a placement expected."""

    @property
    def parts_limit(self) -> int:
        return min(self.most_parts or len(self.client_ports), len(self.client_ports))


@dataclass(eq=False)
class ReadPart:
    """One connection of a read. `flow_id` is what the policy calls it; empty if replica and client are one host: then
    nothing is installed."""

    read_id: str
    number: int
    """Its place among the parts of its read, counted from 0."""
    five_tuple: FiveTuple
    path: Path
    offset_bytes: int
    size_bytes: int
    estimated_bps: float
    cost_seconds: float
    flow_id: str
    moved_at: float
    """When its counter last grew, or when it was placed."""
    transferred_bytes: int = 0
    measured_bps: float | None = None
    reroutes: int = 0
    ended: bool = False
    placed: bool = True
    """Whether its entry is confirmed, and its client may know of it."""
    considered: Sequence[tuple[Replica, float | None]] = ()
    """The replicas that were weighed, each with its least cost in seconds: see `Selection`."""
    stranded: bool = False
    """Whether it lost its path and has no new one: it runs over the default paths, if there are any."""

    @property
    def is_flow(self) -> bool:
        return bool(self.flow_id)


class Following:
    """How the client of a read hears of its divisions. `ports` are those of its local ports that no part had yet."""

    def __init__(self, request: SelectionRequest, most_parts: int, ports: Sequence[int], now: float) -> None:
        self.request = request
        self.most_parts = most_parts
        self.ports = list(ports)
        self.revision = 0
        self.heard_at = now
        self.waiting = 0        # questions that wait for the next revision
        self.divided = True
        """Whether the policy may still divide the read: not when nothing was heard of the client for long."""
        self.next = hub.Event()

    def revised(self) -> None:
        """There is something new: answer whoever waits."""
        self.revision += 1
        self.next.set()
        self.next = hub.Event()


@dataclass(eq=False)
class Read:
    """A read that has not ended. Without parts it waits; only reads that are followed do."""

    id: str
    client: str
    size_bytes: int
    file_id: str | None
    replica_policy: str
    path_policy: str
    started_at: float
    parts: list[ReadPart] = field(default_factory=list)
    following: Following | None = None
    requester: str | None = None
    placement_id: str | None = None

    @property
    def running(self) -> list[ReadPart]:
        return [part for part in self.parts if not part.ended]

    @property
    def flows(self) -> list[ReadPart]:
        return [part for part in self.parts if part.is_flow]


class ReadBook:
    """Every read in flight. Knows nothing of switches or policies."""

    def __init__(self) -> None:
        self._reads: dict[str, Read] = {}
        self._local: dict[str, Read] = {}
        self._by_connection: dict[FiveTuple, ReadPart] = {}

    def __len__(self) -> int:
        return len(self._reads)

    def __iter__(self) -> Iterator[Read]:
        """A snapshot: reads may come and go while it is walked through."""
        return iter(list(self._reads.values()))

    def add(self, read: Read) -> None:
        self._reads[read.id] = read
        if not read.flows:
            self._local[read.id] = read
        for part in read.flows:
            self._add_flow(part)

    def add_part(self, read: Read, part: ReadPart) -> None:
        """A read in flight gets one more part, which is a flow."""
        read.parts.append(part)
        self._add_flow(part)

    def get(self, read_id: str) -> Read | None:
        return self._reads.get(read_id)

    def part_on(self, connection: FiveTuple) -> ReadPart | None:
        """The part that a connection carries."""
        return self._by_connection.get(connection)

    def flows(self) -> list[ReadPart]:
        """Every part that has an entry, oldest first."""
        return list(self._by_connection.values())

    def local(self) -> list[Read]:
        """The reads without an entry that nobody follows, oldest first."""
        return [read for read in self._local.values() if read.following is None]

    def remove(self, read: Read) -> list[ReadPart]:
        """Take a read out. Returns those of its parts that had not ended."""
        if self._reads.pop(read.id, None) is None:
            return []
        self._local.pop(read.id, None)
        return [part for part in read.parts if self._remove(part)]

    def end_part(self, part: ReadPart) -> bool:
        """A part is over; the read with it when it was the last one. False if it was over before."""
        if not self._remove(part):
            return False
        read = self._reads.get(part.read_id)
        if read is not None and all(other.ended for other in read.parts):
            self.remove(read)
        return True

    def drop_part(self, part: ReadPart) -> bool:
        """A part did not come about; its read stays. False if it was over before."""
        return self._remove(part)

    def _add_flow(self, part: ReadPart) -> None:
        self._by_connection[part.five_tuple] = part

    def _remove(self, part: ReadPart) -> bool:
        if part.ended:
            return False
        part.ended = True
        if self._by_connection.get(part.five_tuple) is part:
            del self._by_connection[part.five_tuple]
        return True
