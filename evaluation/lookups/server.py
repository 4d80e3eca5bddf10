"""A metadata server of an experiment: that of `speedwell-metadata-store`, on a processor of a stated speed, which can
also be asked who has a key (LOCATE). `python -m speedwell.evaluation.lookups.server JSON`
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from pydantic import TypeAdapter

from speedwell.controller.policy.metadata.blocks import SPACE, prefixes_between, size
from speedwell.fs.controller import Controller
from speedwell.fs.errors import StorageFailed
from speedwell.fs.metadata_store import server
from speedwell.fs.metadata_store.addresses import PORT, address_of
from speedwell.fs.metadata_store.engines import open_engine
from speedwell.fs.metadata_store.membership import Membership
from speedwell.fs.metadata_store.ownership import Ownership
from speedwell.fs.metadata_store.peers import Peer
from speedwell.fs.metadata_store.routes import OwnerRoutes
from speedwell.fs.metadata_store.server import MetadataServer
from speedwell.fs.metadata_store.wire import encode

LOCATE = b"LOCATE"
CHORD, METAFLOW, SPEEDWELL = "Chord", "MetaFlow", "Speedwell"
STEERED = (METAFLOW, SPEEDWELL)
"""The methods whose requests go by the address of the key."""


@dataclass(frozen=True)
class Role:
    """The server `number` among those at the addresses `hosts`. `blocks` are what MetaFlow's tree gives it. With
    `units_per_second` of 0 it is as fast as it can be."""

    method: str
    number: int
    hosts: tuple[str, ...]
    blocks: tuple[str, ...]
    store: str
    controller: str
    units_per_second: float
    look_up_units: float
    storage_units: float


def owner_of(key: bytes, servers: int) -> int:
    """Who has a key where all have equal parts."""
    return (int(address_of(key)) - SPACE[0]) * servers // size(SPACE)


def equal_part(number: int, servers: int) -> list[IPv4Network]:
    """The blocks of one of them."""
    ends = [SPACE[0] - (-size(SPACE) * each // servers) for each in (number, number + 1)]
    return [IPv4Network(prefix) for prefix in prefixes_between(*ends)]


def next_asked(number: int, owner: int, servers: int) -> int:
    """Chord: whom a server names for a key that is another's: its finger that is nearest before the owner."""
    return (number + (1 << ((owner - number) % servers).bit_length() - 1)) % servers


class Processor:
    """Does one thing after the other, so many units a second."""

    def __init__(self, units_per_second: float) -> None:
        self._rate = units_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0

    def spend(self, units: float) -> None:
        """Returns when that much is done."""
        if not self._rate:
            return
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + units / self._rate
            until = self._free_at
        time.sleep(max(until - time.monotonic(), 0.0))


class Translation(OwnerRoutes):
    """The paper's NAT agent: the kernel translates addresses of blocks to the host's own, and back in answers."""

    def __init__(self, own: str) -> None:
        super().__init__()
        self._own = own

    def set(self, blocks: set[IPv4Network]) -> None:
        """Raises StorageFailed."""
        for verb, changed in (("-A", blocks - self._blocks), ("-D", self._blocks - blocks)):
            for block in sorted(changed):
                ended = subprocess.run(
                    ["iptables", "-w", "-t", "nat", verb, "PREROUTING", "-d", str(block), "-p", "tcp",
                     "--dport", str(PORT), "-j", "DNAT", "--to-destination", f"{self._own}:{PORT}"],
                    capture_output=True, text=True, check=False)
                if ended.returncode:
                    raise StorageFailed(f"cannot translate {block}: {ended.stderr.strip()}")
        self._blocks = set(blocks)


def serve(role: Role) -> None:
    """Until the process is ended. Says `ready` once it listens."""
    processor, servers, own = Processor(role.units_per_second), len(role.hosts), role.hosts[role.number]

    def locate(_: object, key: bytes) -> bytes:
        owner = owner_of(key, servers)
        if role.method == CHORD and owner == role.number:
            return encode(own.encode(), b"1")      # in Chord it answers at once
        processor.spend(role.look_up_units)
        told = next_asked(role.number, owner, servers) if role.method == CHORD else owner
        return encode(role.hosts[told].encode(), b"%d" % (told == owner))

    def on_processor(answer: Callable[..., bytes]) -> Callable[..., bytes]:
        def answered(*arguments: object) -> bytes:
            processor.spend(role.storage_units)
            return answer(*arguments)
        return answered

    for name in (b"GET", b"SET"):
        count, answer = server.COMMANDS[name]
        server.COMMANDS[name] = count, on_processor(answer)
    server.COMMANDS[LOCATE] = 1, locate
    engine = open_engine(role.store, sync=False)
    ownership = Ownership(engine, f"{own}:{PORT}")
    ownership.set_owned(map(IPv4Network, role.blocks) if role.method in STEERED else equal_part(role.number, servers))
    listening = MetadataServer(("0.0.0.0", PORT), engine, ownership)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    if role.method in STEERED:
        ownership.set_members([own])    # writes down what it owns, which the membership claims
        routes = Translation(own) if role.method == METAFLOW else OwnerRoutes()
        Membership(Controller(role.controller), Peer(own, PORT), ownership, routes).start()
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    serve(TypeAdapter(Role).validate_json(Path(sys.argv[1]).read_bytes()))
