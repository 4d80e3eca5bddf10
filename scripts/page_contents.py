"""What systems tell the controller, for pictures and tests of its page: placements that are being written, metadata
servers that share the keys, turns of hosts, dataservers and who leads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import requests

from speedwell.topo.fabric import Fabric

SOON_SECONDS, EVERY_SECONDS = 0.2, 1.0
"""Until metadata servers have their keys, and then."""
SETTLED_ROUNDS = 25
"""After so many all metadata servers have their keys."""
TIB = 1 << 40


@contextlib.contextmanager
def systems(url: str, fabric: Fabric) -> Iterator[None]:
    """They tell it again and again, as in life. Begins when metadata servers have their keys."""
    contents = _Contents(url, fabric)
    for _ in range(SETTLED_ROUNDS):
        contents.tell()
        contents.ended.wait(SOON_SECONDS)
    contents.start()
    try:
        yield
    finally:
        contents.ended.set()
        contents.join()


class _Contents(threading.Thread):
    def __init__(self, url: str, fabric: Fabric) -> None:
        super().__init__(name="page contents", daemon=True)
        self._url, self._hosts = url, fabric.hosts
        self._ip = [host.ip for host in fabric.hosts]
        count = len(self._ip)
        self._owned: dict[str, list[str]] = {ip: [] for ip in self._ip[::max(count // 6, 1)][:6]}
        self._orders: dict[str, dict[str, Any]] = {}
        self.ended = threading.Event()
        self._ask("POST", "placements", {
            "files": [{"writer": writer, "size_bytes": 8 << 30} for writer in self._ip[:3]],
            "candidates": [{"host": host} for host in self._ip[8::5]]})

    def run(self) -> None:
        while not self.ended.wait(EVERY_SECONDS):
            self.tell()

    def tell(self) -> None:
        self._tell_metadata()
        self._tell_turns()
        self._tell_storage()

    def _tell_metadata(self) -> None:
        for host, blocks in self._owned.items():
            said = self._orders.get(host, {})
            leaving = {each["block"] for each in said.get("leaving", [])}
            taken = [each["block"] for each in said.get("incoming", []) if each["take"]]
            self._owned[host] = [block for block in [*blocks, *taken] if block not in leaving]
            ready = [each["block"] for each in said.get("incoming", []) if not each["take"]]
            self._orders[host] = self._ask("POST", "metadata/servers", {
                "host": host, "port": 9000, "id": host, "owned": self._owned[host], "ready": ready,
                "members": said.get("members", [])}).json()

    def _tell_turns(self) -> None:
        senders = self._ip[1:8]
        self._ask("PUT", "timeslices/turns", {
            "policy": "xco-plus", "slice_seconds": 0.02, "agents": len(self._ip), "total": len(senders),
            "turns": [{"source": ip, "destination": self._ip[20], "queued_bytes": 3_000_000 * (number + 1),
                       "waited_seconds": 0.02 * number, "rate_bps": 0.0 if number else 1e9}
                      for number, ip in enumerate(senders)]})

    def _tell_storage(self) -> None:
        servers = [{
            "id": host.name, "host": host.ip, "alive": number != 5, "draining": number == 9,
            "heard_seconds_ago": 95.0 if number == 5 else 0.4, "capacity_bytes": 4 * TIB,
            "available_bytes": 4 * TIB * ((7 * number) % 32 + 2) // 36, "replicas": 900 + 13 * number,
            "failed_directories": int(number == 12)} for number, host in enumerate(self._hosts)]
        servers.sort(key=lambda server: (server["alive"], not server["failed_directories"], not server["draining"],
                                         server["available_bytes"]))
        alive = [server for server in servers if server["alive"]]
        for address, leads in (("10.255.0.1:7000", True), ("10.255.0.1:7001", False)):
            self._ask("PUT", "storage/nameservers", {"address": address, "namespace": {
                "dataservers_known": len(servers), "dataservers_alive": len(alive),
                "files": 20_481, "directories": 512, "replication": 3, "min_replicas": 2, "unwritable_files": 0,
                "capacity_bytes": sum(server["capacity_bytes"] for server in alive),
                "available_bytes": sum(server["available_bytes"] for server in alive), "warnings": [],
                "dataservers": servers} if leads else None})

    def _ask(self, method: str, path: str, body: dict[str, Any]) -> requests.Response:
        answer = requests.request(method, f"{self._url}v1/{path}", json=body, timeout=30)
        answer.raise_for_status()
        return answer
