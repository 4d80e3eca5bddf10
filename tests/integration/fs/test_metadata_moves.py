"""Blocks that move between real metadata servers under load: the controller's book, and a router for its tables."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyroute2 import netns

from speedwell.controller.metadata.api import MetadataApi
from speedwell.controller.metadata.book import MetadataBook, MetadataServerRefused
from speedwell.controller.metadata.hot_book import HotBook
from speedwell.controller.metadata.models import Announcement, text_of
from tests.integration.fs.test_metadata_store import Site
from tests.waiting import wait_until

pytestmark = pytest.mark.root
CLIENTS = ("client", "other", "three")
REQUESTS = """
import sys, time
first, end, is_check = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["check"]
slowest = 0.0
for n in range(first, end):
    began = time.monotonic()
    if is_check:
        assert client.get(b"key %d" % n) == b"%250d" % n, n
    else:
        client.put(b"key %d" % n, b"%250d" % n)
    slowest = max(slowest, time.monotonic() - began)
print(slowest)
"""


class Controller:
    """Serves announcements from a book, and has a router lead blocks as it says."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.book = MetadataBook(lambda hosts: {host: ((host,), ("a",), ("c",)) for host in hosts},
                                 lambda blocks: None, time.monotonic())
        self._lock = threading.Lock()
        self._routes: dict[str, str] = {}
        self._stopped = threading.Event()
        api = MetadataApi(SimpleNamespace(book=self.book, announce=self.book.announced, hot=HotBook(lambda: 0)),
                          SimpleNamespace(name_of=str))
        lock = self._lock

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    with lock:
                        status, answer = 200, api.announce(Announcement.model_validate_json(body)).model_dump_json()
                except MetadataServerRefused as error:
                    status, answer = 409, json.dumps({"detail": str(error)})
                self.send_response(status)
                self.end_headers()
                self.wfile.write(answer.encode())

            def log_message(self, *args: object) -> None:
                pass

        netns.pushns(site.namespace("router"))      # where a socket was made, it stays
        try:
            self._server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
        finally:
            netns.popns()
        self.port = self._server.server_address[1]

    def __enter__(self) -> Controller:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        threading.Thread(target=self._go_on, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._server.shutdown()

    def _go_on(self) -> None:
        while not self._stopped.wait(0.02):
            with self._lock:
                self.book.go_on(time.monotonic())
                version = self.book.version
                wanted = {text_of(block): host for host, blocks in self.book.blocks.items() for block in blocks}
            for block, host in wanted.items():
                if self._routes.get(block) != host:
                    self.site.route(block, next(name for name in self.site.names if self.site.host(name) == host))
            for block in self._routes.keys() - wanted.keys():
                self.site.unroute(block)
            self._routes = wanted
            self.book.synced_version = version

    def leave(self, host: str) -> None:
        with self._lock:
            self.book.left(host, lost=False)

    def is_settled(self, hosts: set[str]) -> bool:
        with self._lock:
            return (not self.book.transfers and not self.book.holes
                    and {host for host, blocks in self.book.blocks.items() if blocks} == hosts)


@pytest.fixture
def controlled(tmp_path: Path) -> Iterator[Controller]:
    with Site((*CLIENTS, "one", "two", "redis"), tmp_path) as site, Controller(site) as controller:
        yield controller


def test_no_put_is_lost_and_no_request_fails_while_servers_join_are_killed_and_leave(controlled):
    site = controlled.site

    def serve(name: str, store: str | None = None) -> None:
        site.serve(name, "--no-fsync", "--host", site.host(name), "--controller",
                   f"http://{site.gateway(name)}:{controlled.port}", store=store)

    def settle(*names: str) -> None:
        wait_until(lambda: controlled.is_settled({site.host(name) for name in names}), 60,
                   lambda: f"{[vars_of(each) for each in controlled.book.transfers]}, {controlled.book.blocks}")

    serve("one")
    settle("one")
    number = 1500
    sent = [site.start_client(REQUESTS, name, str(10000 * at), str(10000 * at + number))
            for at, name in enumerate(CLIENTS)]
    serve("two")
    serve("redis", site.redis("redis"))
    settle("one", "two", "redis")
    serve("client")
    settle("one", "two", "redis", "client")
    controlled.leave(site.host("one"))
    settle("two", "redis", "client")
    slowest = max(float(said(process)) for process in sent)
    site.processes["two"].kill()
    site.processes["two"].wait()
    serve("two")
    quiet = max(float(said(process)) for process in [
        site.start_client(REQUESTS, name, str(10000 * at), str(10000 * at + number), "check")
        for at, name in enumerate(reversed(CLIENTS))])
    print("the slowest request while blocks moved:", slowest, "and while none did:", quiet)
    assert slowest < 5.0 + 5 * quiet


def vars_of(transfer: object) -> dict[str, object]:
    return {name: getattr(transfer, name) for name in transfer.__slots__}    # type: ignore[attr-defined]


def said(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return output
