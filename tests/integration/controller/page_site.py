"""Controllers with simulated switches whose page tests look at."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import sys
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path

from speedwell.topo.fabric import Fabric
from tests.chromium import Browser

sys.path.append(str(Path(__file__).parents[3] / "scripts"))
import bench_reads
import page_contents

FIND_SECONDS = 300.0
VIEWS = ("Reads", "Coflows", "Turns", "Placements", "Metadata", "Storage", "Links", "Health")


def told(fabric: Fabric, has_coflows: bool = False) -> dict[str, str]:
    """What each of the page's views tells of a fabric whose controller `controller_of` started."""
    hosts, switches = len(fabric.hosts), len(fabric.switches)
    coflows = " scheduled" if has_coflows else "coflow_key_file"
    return dict(zip(VIEWS, (
        " \u2192 ", coflows, f"xco-plus, slices of 20 ms, {hosts} agents", "Policy: sinbad",
        "core0 \u2026 core1 (2) 100 %", f"Dataservers: {hosts - 1} of {hosts} alive", "33 %",
        f"Switches: {switches} of {switches} connected"), strict=True))


def assert_every_view_tells(page: Browser, wanted: dict[str, str], seconds: float = 30.0) -> None:
    for number, (name, text) in enumerate(wanted.items(), 1):
        page.press(str(number))
        page.until(f"document.querySelector('[role=tab][aria-selected=true]')?.innerText.startsWith('{name}')")
        page.until(f"document.querySelector('#panel').innerText.includes({text!r})", seconds)


@contextlib.contextmanager
def controller_of(fabric: Fabric, reads: int, coflows: int = 0, options: Sequence[str] = ()
                  ) -> Iterator[tuple[str, bench_reads.Clients]]:
    """The page's address, of a controller that knows all hosts, all systems and so many reads in flight, and who asks
    for these."""
    addresses = [host.ip for host in fabric.hosts]
    with bench_reads.running(Path(__file__).parents[3], fabric, coflows, 1000, options) as controller:
        controller.find_hosts(addresses, FIND_SECONDS)
        with contextlib.closing(bench_reads.Clients(controller, addresses, 4, 3, {}, 1)) as clients:
            clients.fill(reads, 30)
            url = "http://{}:{}/".format(*controller.address)
            with page_contents.systems(url, fabric):
                if coflows:
                    controller.wait_for_coflows()
                yield url, clients


def pick_link(page: Browser, ends: Sequence[str]) -> None:
    page.value(f"speedwell.pick({{ kind: 'link', link: speedwell.model.fabric.link(...{list(ends)}.map("
               "(id) => speedwell.model.fabric.numbers.get(id))) })")


class Cable(socketserver.ThreadingTCPServer):
    """Between a browser and the controller at `url`, to be pulled out."""

    daemon_threads = True
    is_plugged = True

    def __init__(self, url: str) -> None:
        self.controller = urllib.parse.urlsplit(url)
        self.ends: list[socket.socket] = []
        super().__init__(("127.0.0.1", 0), _Cable)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def pull_out(self) -> None:
        self.is_plugged = False
        self.cut()

    def cut(self) -> None:
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class _Cable(socketserver.BaseRequestHandler):
    server: Cable

    def handle(self) -> None:
        if not self.server.is_plugged:
            return
        with socket.create_connection((self.server.controller.hostname, self.server.controller.port)) as there:
            self.server.ends += [self.request, there]
            back = threading.Thread(target=_carry, args=(there, self.request), daemon=True)
            back.start()
            _carry(self.request, there)
            back.join()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
