"""Requests to two controllers of which one leads, over real sockets."""

from __future__ import annotations

import http.client
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from speedwell.fs import controller as controller_module
from speedwell.fs.controller import LEADER_HEADER, MOST_CONTROLLERS, OF_INSTALLATION, STANDBY_HEADER, Controller
from speedwell.fs.errors import InvalidArgument
from speedwell.fs.identity import files, places
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.roles import MOUNT


class One:
    """A controller that leads or stands by."""

    def __init__(self) -> None:
        self.leads = True
        self.leader = self.standbys = ""
        self.asked: list[tuple[str, bytes]] = []
        self.hosts: list[str] = []
        one = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                one.asked.append((self.path, body))
                one.hosts.append(self.headers["Host"])
                self.send_response(200 if one.leads else 503)
                if not one.leads:
                    self.send_header(LEADER_HEADER, one.leader)
                elif one.standbys:
                    self.send_header(STANDBY_HEADER, one.standbys)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@contextmanager
def two() -> Iterator[tuple[One, One]]:
    a, b = One(), One()
    try:
        yield a, b
    finally:
        for each in (a, b):
            each.server.shutdown()
            each.server.server_close()


def post(connection: http.client.HTTPConnection, body: bytes) -> int:
    connection.request("POST", "/v1/reads", body)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_a_request_to_a_standby_goes_to_the_leader_at_once_and_so_do_those_after_it() -> None:
    with two() as (a, b):
        a.leads = False
        controller = Controller(f"{a.url},{b.url}")
        first, second = controller.connect(20), controller.connect(20)
        assert (post(first, b"1"), post(first, b"2"), post(second, b"3")) == (200, 200, 200)
        assert [body for _, body in a.asked] == [b"1"]
        assert [body for _, body in b.asked] == [b"1", b"2", b"3"]
        assert b.hosts == [b.url.removeprefix("http://")] * 3
        a.leads, b.leads = True, False
        assert post(first, b"4") == 200 and a.asked[-1] == ("/v1/reads", b"4")


def test_a_controller_that_refuses_connections_is_passed_over() -> None:
    with two() as (a, b):
        a.server.shutdown()
        a.server.server_close()
        connection = Controller(f"{a.url},{b.url}").connect(20)
        assert (post(connection, b"1"), post(connection, b"2")) == (200, 200)
        assert len(b.asked) == 2


def test_one_that_is_slow_is_asked_rather_than_one_that_refuses_connections() -> None:
    with two() as (a, b):
        controller = Controller(f"{a.url},{b.url}")
        a.server.shutdown()
        a.server.server_close()
        assert post(controller.connect(20), b"1") == 200
        controller.left(controller.door, is_silent=True)
        assert post(controller.connect(20), b"2") == 200
        assert [body for _, body in b.asked] == [b"1", b"2"]


def test_after_one_that_is_silent_the_next_request_goes_to_the_other() -> None:
    with two() as (a, _), socket.create_server(("127.0.0.1", 0)) as silent:
        controller = Controller(f"http://127.0.0.1:{silent.getsockname()[1]},{a.url}")
        connection = controller.connect(0.2)
        with pytest.raises(TimeoutError):
            post(connection, b"1")
        connection.close()
        connection.timeout = 10
        assert post(connection, b"2") == 200 and a.asked == [("/v1/reads", b"2")]


def test_a_standby_is_asked_again_rather_than_one_that_was_silent_a_moment_ago(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "SILENT_SECONDS", 60.0)
    with two() as (a, _), socket.create_server(("127.0.0.1", 0)) as silent:
        a.leads = False
        connection = Controller(f"http://127.0.0.1:{silent.getsockname()[1]},{a.url}").connect(0.2)
        with pytest.raises(TimeoutError):
            post(connection, b"1")
        connection.close()
        connection.timeout = 10
        assert (post(connection, b"2"), post(connection, b"3")) == (503, 503)
        a.leads = True
        assert post(connection, b"4") == 200


def test_a_leader_that_a_standby_names_is_asked_though_nobody_gave_its_address() -> None:
    with two() as (a, b):
        a.leads, a.leader = False, b.url
        connection = Controller(a.url).connect(20)
        assert (post(connection, b"1"), post(connection, b"2")) == (200, 200)
        assert [body for _, body in b.asked] == [b"1", b"2"]


@pytest.mark.parametrize("leader", ["https://127.0.0.1:1", "nonsense", "http://", "http://a:1/path"])
def test_what_a_standby_names_is_passed_over_where_it_is_no_controller_of_the_same_kind(leader: str) -> None:
    with two() as (a, _):
        a.leads, a.leader = False, leader
        controller = Controller(a.url)
        assert (post(controller.connect(20), b"1"), len(controller)) == (503, 1)


def test_where_none_leads_that_is_the_answer() -> None:
    with two() as (a, b):
        a.leads = b.leads = False
        assert post(Controller(f"{a.url},{b.url}").connect(20), b"1") == 503
        assert (len(a.asked), len(b.asked)) == (1, 1)


def test_where_none_can_be_reached_the_last_problem_is_raised() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        urls = [f"http://127.0.0.1:{each.getsockname()[1]}" for each in (one, other)]
    with pytest.raises(ConnectionRefusedError):
        post(Controller(",".join(urls)).connect(20), b"1")


@pytest.mark.parametrize("url", ["http://a:1,", ",http://a:1", "http://a:1,b:2"])
def test_each_address_must_be_one(url: str) -> None:
    with pytest.raises(InvalidArgument, match="is not http://HOST"):
        Controller(url)


def test_a_client_of_one_learns_from_it_who_would_take_over() -> None:
    with two() as (a, b):
        a.standbys = f"{b.url},no URL,ftp://127.0.0.1:1"
        controller = Controller(a.url)
        connection = controller.connect(20)
        assert post(connection, b"1") == 200 and len(controller) == 2
        a.server.shutdown()
        a.server.server_close()
        connection.close()
        assert post(connection, b"2") == 200 and b.asked == [("/v1/reads", b"2")]


def test_who_names_ever_new_ones_is_believed_a_few() -> None:
    with two() as (a, _):
        controller = Controller(a.url)
        connection = controller.connect(20)
        for number in range(5 * MOST_CONTROLLERS):
            a.standbys = f"http://127.0.0.1:{number + 1}"
            assert post(connection, b"1") == 200
        assert len(controller) == MOST_CONTROLLERS


class Machine:
    """One that hears of controllers, and what its programs know of them."""

    def __init__(self, directory: Path, given: str = OF_INSTALLATION) -> None:
        self.identity = Authority.make(directory / "identity").issue("mount-d", MOUNT)
        self.controller = Controller(given, self.identity)

    def told(self, urls: str) -> None:
        (self.identity.parent / files.CONTROLLERS).write_text(urls)


def test_who_asks_the_controllers_of_the_installation_waits_until_there_is_one(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "LOOK_SECONDS", 0.0)
    machine = Machine(tmp_path)
    controller, connection = machine.controller, machine.controller.connect(1)
    assert not controller.is_known and not controller.find_leader(0.1)
    with pytest.raises(ConnectionRefusedError, match="the installation has no controller yet"):
        post(connection, b"1")
    machine.told("https://127.0.0.1:1")
    assert controller.is_known and controller.url == "https://127.0.0.1:1"
    with pytest.raises(OSError, match=r"[Rr]efused"):
        post(connection, b"2")
    assert Controller(OF_INSTALLATION, machine.identity).is_known


def test_one_of_which_the_machine_was_told_meanwhile_is_asked_when_the_first_is_gone(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "https://127.0.0.1:1")
    machine.told("https://127.0.0.1:1,https://127.0.0.1:2,http://127.0.0.1:3,nonsense,https://,")
    machine.controller.left(machine.controller.door, is_gone=True)
    assert machine.controller.url == "https://127.0.0.1:1,https://127.0.0.1:2"
    assert machine.controller.door.url == "https://127.0.0.1:2"


def test_what_is_no_text_in_place_of_controllers_counts_as_none(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (machine.identity.parent / files.CONTROLLERS).write_bytes(b"\xff\xfe")
    assert not Controller(OF_INSTALLATION, machine.identity).is_known
    assert not Controller(OF_INSTALLATION, tmp_path / "elsewhere" / "identity").is_known


@pytest.mark.parametrize("nonsense", [
    "nonsense", "https://c:1/path", "http://c:1", f"https://{'c' * 64}:1", "https://c\0:1", "https://c..d:1", "https://c:1\n",
    ",".join(f"https://c/{number}" for number in range(50_000))])
def test_what_is_no_url_of_a_controller_is_passed_over_by_all_who_read_it(tmp_path: Path, nonsense: str) -> None:
    machine = Machine(tmp_path)
    machine.told(nonsense)
    assert places.controllers_for(machine.identity) == "" and not machine.controller.is_known
    machine.told("https://127.0.0.1:1," + nonsense)
    assert places.controllers_for(machine.identity) == Controller(OF_INSTALLATION, machine.identity).url
    assert Controller(OF_INSTALLATION, machine.identity).url == "https://127.0.0.1:1"


def test_a_list_of_controllers_that_does_not_end_counts_as_none(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (machine.identity.parent / files.CONTROLLERS).symlink_to("/dev/zero")
    assert not Controller(OF_INSTALLATION, machine.identity).is_known


def test_who_is_told_of_ever_more_controllers_by_the_authority_believes_a_few(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.told(",".join(f"https://127.0.0.1:{number}" for number in range(1, 1000)))
    assert len(places.controllers_for(machine.identity).split(",")) == MOST_CONTROLLERS


def test_the_controllers_of_the_installation_are_of_no_use_without_an_identity(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(places.VARIABLE, raising=False)
    with pytest.raises(InvalidArgument, match="name yours with --identity"):
        Controller(OF_INSTALLATION)


def test_threads_that_hear_of_controllers_at_once_lose_none(tmp_path: Path) -> None:
    """Each adds one between another's look and its addition."""
    machine = Machine(tmp_path, "https://127.0.0.1:1")
    wanted = {f"https://127.0.0.1:{number}" for number in range(1, MOST_CONTROLLERS + 1)}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            controller = Controller("https://127.0.0.1:1", machine.identity)
            threads = [threading.Thread(target=controller.told, args=(controller.door, url)) for url in wanted]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert set(controller.url.split(",")) == wanted and len(controller) == len(wanted)
    finally:
        sys.setswitchinterval(interval)
