"""The dataservers: who they are (kept in the store), and who is alive (kept in memory).

Every dataserver has a small number, under which files name it; its address may change when it restarts.
Times are monotonic seconds, passed in.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from speedwell.fs.errors import AlreadyExists, InvalidArgument, NoReplicaAvailable, NoSpace, StorageFailed
from speedwell.fs.nameserver.namespace.namespace_records import DATASERVER_PREFIX, dataserver_key
from speedwell.fs.nameserver.replicas.placement import Candidate
from speedwell.fs.proto.speedwell_pb2 import DataserverStatus, DirectoryUse, NumberedDataserver
from speedwell.fs.release import read_fields
from speedwell.fs.store import Batch, Store, end_of_prefix

LEASE_SECONDS = 3.0
"""How long after its last heartbeat a dataserver counts as alive by default (it sends one every second).
It believes in its own lease for a shorter time, so nobody orders appends any more when this one ends."""
FIRST_CONTACT_SECONDS = 10.0
"""How long a nameserver that nobody has reported to yet takes its dataservers for alive: those that waited for
the one before it need to find it."""

MAX_DATASERVERS = 65536


@dataclass(frozen=True, slots=True)
class Dataserver:
    """`dataserver_id` is its stable name, `host` and `port` the address of its data channel."""

    number: int
    dataserver_id: str
    host: str
    port: int
    rack: str
    pod: str
    draining: bool = False
    removed: bool = False       # by an operator: its number stays taken


@dataclass(slots=True)
class Status:
    """What the last heartbeat said; capacities are None until the first one after a restart."""

    last_heartbeat_seconds: float
    capacity_bytes: int | None = None
    available_bytes: int | None = None
    disk: str = ""
    disk_left_bytes: int = 0
    """A second that its disk could write besides; 0: not known."""
    insecure: bool = False
    other_hosts: tuple[str, ...] = ()
    directories: tuple[DirectoryUse, ...] = ()
    release: str = ""

    @property
    def room_bytes(self) -> int | None:
        """What one file may take: it lies in one directory."""
        return max((use.available_bytes for use in self.directories), default=self.available_bytes)

    @property
    def used_part(self) -> float:
        """Of its disk, from 0 to 1; 0 where that is not known."""
        return 1 - (self.available_bytes or 0) / self.capacity_bytes if self.capacity_bytes else 0.0

    def disks(self, number: int) -> dict[str, tuple[int, int]]:
        """(bytes, bytes free) of each, by what tells disks apart; those of dataserver `number`."""
        if not self.directories:
            return {self.disk or str(number): (self.capacity_bytes or 0, self.available_bytes or 0)}
        return {use.disk: (use.capacity_bytes, use.available_bytes) for use in self.directories if not use.failure}


class Registry:
    """After a restart of the nameserver every known dataserver is taken for alive until it had the time to
    send a heartbeat: a restart must not make creates fail. As long as none has sent one, that is longer."""

    def __init__(self, store: Store, *, now_seconds: float, lease_seconds: float = LEASE_SECONDS) -> None:
        self._store = store
        self._lease_seconds = lease_seconds
        self._servers: dict[int, Dataserver] = {}
        self._numbers: dict[str, int] = {}
        self.changes = 0    # of the records, since the start
        self._status: dict[int, Status] = {}
        self._as_of_seconds = float("inf")
        self._patience_seconds = max(lease_seconds, FIRST_CONTACT_SECONDS)
        for key, value in store.iterate(DATASERVER_PREFIX, end_of_prefix(DATASERVER_PREFIX)):
            try:
                server = read_fields(Dataserver, json.loads(value))
            except (ValueError, TypeError) as error:
                raise StorageFailed(f"the record of dataserver {key[1:].hex()} is damaged") from error
            self._remember(server, Status(now_seconds))

    def heartbeat(self, dataserver_id: str, host: str, port: int, rack: str, pod: str, *,
                  capacity_bytes: int, available_bytes: int, now_seconds: float, disk: str = "",
                  disk_left_bytes: int = 0, insecure: bool = False,
                  other_hosts: tuple[str, ...] = (), directories: Iterable[DirectoryUse] = (),
                  release: str = "") -> Dataserver:
        """Take note of a heartbeat; a new dataserver gets a number.

        Raises AlreadyExists if a live dataserver at another address has the same id.
        """
        number = self._numbers.get(dataserver_id)
        known = self._servers[number] if number is not None else None
        if known is None and len(self._servers) >= MAX_DATASERVERS:
            raise StorageFailed(f"there are {MAX_DATASERVERS} dataservers already")
        server = Dataserver(len(self._servers) if number is None else number,
                            dataserver_id, host, port, rack, pod, known is not None and known.draining)
        if known is not None and (known.host, known.port) != (host, port) and self._heard(known, now_seconds):
            raise AlreadyExists(f"server.dataserver_id: {dataserver_id!r} is taken by the live dataserver "
                                f"at {known.host}:{known.port}")
        self._patience_seconds = self._lease_seconds
        if server != known:
            self._write(server)
        elif self._status[server.number].other_hosts != other_hosts:
            self.changes += 1
        self._remember(server, Status(now_seconds, capacity_bytes, available_bytes, disk,
                                      disk_left_bytes, insecure, other_hosts, tuple(directories), release))
        return server

    def introduce(self, batch: Batch, servers: Iterable[NumberedDataserver]) -> dict[str, int]:
        """The number here of each dataserver by its id; those that are not known get one, and a record in `batch`.
        They count once `introduced` is told of the batch. Raises StorageFailed if there are too many."""
        numbers, free = {}, len(self._servers)
        for server in servers:
            number = self._numbers.get(server.dataserver_id)
            if number is None:
                number, free = free, free + 1
                batch.put(dataserver_key(number), _encoded(Dataserver(
                    number, server.dataserver_id, server.host, server.port, server.rack, server.pod)))
            numbers[server.dataserver_id] = number
        if free > MAX_DATASERVERS:
            raise StorageFailed(f"there would be more than {MAX_DATASERVERS} dataservers")
        return numbers

    def introduced(self, batch: Batch, now_seconds: float) -> None:
        """The dataservers that `introduce` has put into `batch` are written."""
        for key, value in batch.changes.items():
            if key.startswith(DATASERVER_PREFIX) and value is not None:
                self.changes += 1
                self._remember(read_fields(Dataserver, json.loads(value)), Status(now_seconds))

    def was_heard(self, number: int) -> bool:
        """Whether it has reported since the nameserver began to serve."""
        return self._status[number].capacity_bytes is not None

    def set_draining(self, number: int, draining: bool) -> None:
        """Have a dataserver get no new replicas, or again."""
        server = replace(self._servers[number], draining=draining)
        self._write(server)
        self._servers[number] = server

    def remove(self, number: int) -> None:
        """Forget a dataserver that never comes back; if it does, it is a new one."""
        server = replace(self._servers[number], draining=False, removed=True)
        self._write(server)
        self._servers[number] = server

    def is_removed(self, number: int) -> bool:
        server = self._servers.get(number)
        return server is not None and server.removed

    def _write(self, server: Dataserver) -> None:
        batch = Batch()
        batch.put(dataserver_key(server.number), _encoded(server))
        self._store.write(batch)
        self.changes += 1

    def _heard(self, server: Dataserver, now_seconds: float) -> bool:
        """Alive, and not only by the benefit of the doubt after a restart."""
        return self._status[server.number].capacity_bytes is not None and self.is_alive(server.number,
                                                                                       now_seconds)

    def _remember(self, server: Dataserver, status: Status) -> None:
        self._servers[server.number] = server
        self._numbers[server.dataserver_id] = server.number
        self._status[server.number] = status

    def hear(self, statuses: Iterable[DataserverStatus], now_seconds: float) -> None:
        """Take over what the nameserver knows that dataservers report to. What it does not say for a while makes none
        of them dead."""
        self._as_of_seconds, self._patience_seconds = now_seconds, self._lease_seconds
        for each in statuses:
            number = self._numbers.get(each.server.dataserver_id)
            if number is not None:
                self._status[number] = Status(
                    now_seconds - each.last_heartbeat_seconds_ago, each.capacity_bytes or None,
                    each.available_bytes if each.capacity_bytes else None, each.disk,
                    other_hosts=tuple(each.server.other_hosts), directories=tuple(each.directories),
                    release=each.release)

    def is_alive(self, number: int, now_seconds: float) -> bool:
        status, now_seconds = self._status.get(number), min(now_seconds, self._as_of_seconds)
        return status is not None and now_seconds - status.last_heartbeat_seconds <= self._patience_seconds

    def is_draining(self, number: int) -> bool:
        server = self._servers.get(number)
        return server is not None and server.draining

    def silent_seconds(self, number: int, now_seconds: float) -> float:
        """How long a dataserver has not been heard from; for ever if it never was."""
        status = self._status.get(number)
        return float("inf") if status is None else now_seconds - status.last_heartbeat_seconds

    def numbers(self) -> list[int]:
        """All dataservers ever seen and not removed."""
        return [number for number, server in self._servers.items() if not server.removed]

    def used_parts(self, now_seconds: float) -> dict[int, float]:
        """The used part of each live dataserver's disk, from 0 to 1."""
        return {number: status.used_part for number, status in self._status.items()
                if status.capacity_bytes and self.is_alive(number, now_seconds) and not self.is_draining(number)}

    def capacity(self, now_seconds: float) -> tuple[int, int]:
        """(bytes of all disks of live dataservers, bytes free there); a disk that several share counts once."""
        disks: dict[str, tuple[int, int]] = {}
        for number, status in self._status.items():
            if self.is_alive(number, now_seconds):
                disks |= status.disks(number)
        return sum(size for size, _ in disks.values()), sum(free for _, free in disks.values())

    def failed_directories(self, now_seconds: float) -> list[str]:
        """What is to be said about each, of the live dataservers."""
        return [f"the directory {use.path} of the dataserver {self._servers[number].dataserver_id} has failed and is "
                f"not used: {use.failure}" for number, status in self._status.items() for use in status.directories
                if use.failure and self.is_alive(number, now_seconds) and not self._servers[number].removed]

    def number_of(self, dataserver_id: str) -> int | None:
        number = self._numbers.get(dataserver_id)
        return None if number is None or self._servers[number].removed else number

    def with_state(self, numbers: Iterable[int], now_seconds: float) -> list[tuple[Dataserver, bool]]:
        """The dataservers with whether each is alive, in the order given."""
        return [(self._servers[number], self.is_alive(number, now_seconds)) for number in numbers
                if number in self._servers]

    def candidates(self, now_seconds: float) -> list[Candidate]:
        """Live dataservers that have space left, for placement."""
        return [Candidate(server.number, server.host, server.rack, status.room_bytes, status.used_part,
                          status.disk_left_bytes)
                for number, server in self._servers.items()
                if (status := self._status[number]).available_bytes != 0 and not server.draining
                and self.is_alive(number, now_seconds)]

    def numbers_for_new_file(self, wanted: Sequence[str], now_seconds: float) -> tuple[int, ...]:
        """The dataservers of these ids, in this order.

        Raises InvalidArgument for an id never heard of, NoReplicaAvailable if one is dead, NoSpace if one is full.
        """
        numbers = []
        for index, dataserver_id in enumerate(wanted):
            number = self.number_of(dataserver_id)
            if number is None:
                raise InvalidArgument(f"no dataserver is called {dataserver_id!r}")
            if not self.is_alive(number, now_seconds):
                raise NoReplicaAvailable(f"the dataserver {dataserver_id} is not alive")
            if self._status[number].available_bytes == 0:
                raise NoSpace(f"replicas[{index}]: the dataserver {dataserver_id} is full")
            numbers.append(number)
        return tuple(numbers)

    def note_full(self, number: int) -> None:
        """A dataserver has no room: it gets no replica until it says how much it has."""
        self._status[number].available_bytes = 0

    def alive_count(self, now_seconds: float) -> int:
        return sum(self.is_alive(number, now_seconds) for number in self._servers)

    def known(self) -> list[Dataserver]:
        """All dataservers ever seen: sets of replicas may name those that were removed for a while."""
        return list(self._servers.values())

    def other_hosts(self, number: int) -> tuple[str, ...]:
        """At which a dataserver may be reached besides, as it last said."""
        return self._status[number].other_hosts

    def statuses(self) -> list[tuple[Dataserver, Status]]:
        """All dataservers ever seen and not removed, by id."""
        return sorted(((self._servers[number], self._status[number]) for number in self.numbers()),
                      key=lambda pair: pair[0].dataserver_id)


def _encoded(server: Dataserver) -> bytes:
    return json.dumps(asdict(server)).encode()
