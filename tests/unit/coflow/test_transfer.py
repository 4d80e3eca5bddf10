"""A file over several connections: it arrives as it was or not at all."""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.coflow.errors import TransferFailed
from speedwell.coflow.parts import MAX_PARTS, split
from speedwell.coflow.receiver import Receiver
from speedwell.coflow.reporter import Reporter
from speedwell.coflow.settings import SchedulerAddress
from speedwell.coflow.transfer import send
from tests.waiting import wait_until

KEY = b"k" * 32


@dataclass
class Receiving:
    """A receiver in a thread."""

    receiver: Receiver
    directory: Path
    files: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self.receiver.serve, args=(self.files.append,))
        self.thread.start()

    def stop(self) -> None:
        self.receiver.close()
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def receiving(tmp_path: Path) -> Iterator[Receiving]:
    running = Receiving(Receiver(tmp_path / "in", "127.0.0.1", 0), tmp_path / "in")
    yield running
    running.stop()


def content(size: int) -> bytes:
    return bytes(number * 7919 % 251 for number in range(min(size, 1000))) * (size // 1000 + 1)


@pytest.mark.parametrize(("size", "flows"), [(0, 4), (1, 4), (999_999, 1), (1_000_000, 7), (70_000, 64)])
def test_a_file_arrives_as_it_was(receiving: Receiving, tmp_path: Path, size: int, flows: int) -> None:
    source = tmp_path / "a file"
    source.write_bytes(content(size)[:size])
    moved = []
    send(source, *receiving.receiver.address, flows, advance=moved.append)
    assert receiving.files == [receiving.directory / "a file"]
    assert receiving.files[0].read_bytes() == source.read_bytes() and sum(moved) == size
    assert [path.name for path in receiving.directory.iterdir()] == ["a file"]


@pytest.mark.parametrize("name", [b"\xff is no UTF-8", b"n" * 255, b"two\nlines", b".hidden", b"-f"])
def test_a_file_keeps_its_name_whatever_it_is(receiving: Receiving, tmp_path: Path, name: bytes) -> None:
    source = tmp_path / os.fsdecode(name)
    source.write_bytes(b"content")
    send(source, *receiving.receiver.address, 2)
    assert [os.fsencode(path.name) for path in receiving.directory.iterdir()] == [name]


def test_a_file_that_cannot_have_its_name_leaves_nothing_and_others_arrive(
        receiving: Receiving, tmp_path: Path) -> None:
    (receiving.directory / "taken").mkdir()
    for name in ("taken", "free"):
        (tmp_path / name).write_bytes(b"content")
    with pytest.raises(TransferFailed, match="Is a directory"):
        send(tmp_path / "taken", *receiving.receiver.address, 3)
    send(tmp_path / "free", *receiving.receiver.address, 3)
    assert sorted(path.name for path in receiving.directory.iterdir()) == ["free", "taken"]
    assert list((receiving.directory / "taken").iterdir()) == []


def test_a_file_larger_than_there_may_be_leaves_nothing(receiving: Receiving, tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as large:
        large.truncate(2_000_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        with pytest.raises(TransferFailed, match="File too large"):
            send(tmp_path / "large", *receiving.receiver.address, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    # The other part may have come after the limit was lifted.
    wait_until(lambda: list(receiving.directory.iterdir()) == [], 10, "something is left")


def test_what_is_no_file_of_known_size_is_not_sent(receiving: Receiving, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(TransferFailed, match="size is known"):
            send(path, *receiving.receiver.address, 2)


def test_a_flow_that_is_done_waits_for_slower_ones_as_long_as_they_move(
        receiving: Receiving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speedwell.coflow.parts.TIMEOUT_SECONDS", 2.0)
    header = {"transfer": "ab", "name": "x", "total": 12, "parts": 2, "size": 6}
    with closing(socket.create_connection(receiving.receiver.address)) as first, \
            closing(socket.create_connection(receiving.receiver.address)) as second:
        first.sendall(json.dumps(header | {"part": 0, "offset": 0}).encode() + b"\nabcdef")
        first.sendall(sha256(b"abcdef").digest())
        assert first.recv(6) == b"taken\n"
        assert first.recv(5) == b"done\n"
        second.sendall(json.dumps(header | {"part": 1, "offset": 6}).encode() + b"\n")
        assert second.recv(6) == b"taken\n"
        begin = time.monotonic()
        for byte in b"ghijkl":
            assert not select.select([first, second], [], [], 0.6)[0], "it is given up while it moves"
            second.sendall(bytes([byte]))
        second.sendall(sha256(b"ghijkl").digest())
        assert second.recv(5) == b"done\n" and first.recv(5) == b"ok\n"
        assert time.monotonic() - begin > 2.0
    assert (receiving.directory / "x").read_bytes() == b"abcdefghijkl"


def test_a_sender_whose_receiver_stands_still_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speedwell.coflow.parts.TIMEOUT_SECONDS", 1.0)
    (tmp_path / "file").write_bytes(b"content")
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TransferFailed, match="nothing has moved"):
        send(tmp_path / "file", *silent.getsockname()[:2], 2)


def test_no_byte_of_a_file_goes_to_who_is_no_receiver(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content of the file")
    heard: list[bytes] = []

    def answer(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            heard.append(connection.recv(10_000))
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            heard.append(connection.recv(10_000))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        stranger = threading.Thread(target=answer, args=(listening,))
        stranger.start()
        with pytest.raises(TransferFailed, match="what answers there is no `speedwell coflow recv`"):
            send(tmp_path / "file", *listening.getsockname()[:2], 1)
        stranger.join(10)
    assert b"content" not in b"".join(heard)


def test_a_transfer_that_fails_does_not_write_into_another(receiving: Receiving, tmp_path: Path) -> None:
    """Parts of the first are still on their way when it is given up; the second begins then."""
    header = {"transfer": "ab", "name": "failing", "total": 2_000_000, "parts": 2, "size": 1_000_000}
    (tmp_path / "file").write_bytes(content(1_000_000)[:1_000_000])
    with closing(socket.create_connection(receiving.receiver.address)) as slow, \
            closing(socket.create_connection(receiving.receiver.address)) as broken:
        slow.sendall(json.dumps(header | {"part": 0, "offset": 0}).encode() + b"\n" + bytes(1000))
        wait_until(lambda: list(receiving.directory.iterdir()), 15, "the first part is not taken")
        broken.sendall(json.dumps(header | {"part": 1, "offset": 1_000_000}).encode() + b"\n")
        broken.shutdown(socket.SHUT_WR)
        assert broken.recv(6) == b"taken\n"
        assert b"error" in broken.recv(200)
        sending = threading.Thread(target=send, args=(tmp_path / "file", *receiving.receiver.address, 4))
        sending.start()
        with suppress(OSError):
            slow.sendall(b"\xff" * 900_000)
        sending.join(20)
    assert [path.name for path in receiving.directory.iterdir()] == ["file"]
    assert (receiving.directory / "file").read_bytes() == (tmp_path / "file").read_bytes()


def test_a_receiver_that_is_closed_leaves_nothing_of_what_has_not_arrived(receiving: Receiving) -> None:
    header = {"transfer": "ab", "name": "x", "total": 4, "part": 0, "parts": 1, "offset": 0, "size": 4}
    with closing(socket.create_connection(receiving.receiver.address)) as connection:
        connection.sendall(json.dumps(header).encode() + b"\nab")
        wait_until(lambda: list(receiving.directory.iterdir()), 15, "the part is not taken")
        receiving.stop()
    assert list(receiving.directory.iterdir()) == []


def test_flows_within_a_machine_are_not_reported(receiving: Receiving, tmp_path: Path) -> None:
    source = tmp_path / "file"
    source.write_bytes(content(3_000_000))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as scheduler:
        scheduler.bind(("127.0.0.1", 0))
        scheduler.setblocking(False)
        with Reporter(SchedulerAddress("127.0.0.1", scheduler.getsockname()[1], KEY)) as reporter:
            send(source, *receiving.receiver.address, 3, reporter)
        with pytest.raises(BlockingIOError):
            scheduler.recv(2000)
    assert len(receiving.files) == 1


def test_a_sender_that_leaves_while_its_other_parts_are_missing_leaves_nothing(receiving: Receiving) -> None:
    header = {"transfer": "ab", "name": "x", "total": 12, "parts": 2, "part": 0, "offset": 0, "size": 6}
    with closing(socket.create_connection(receiving.receiver.address)) as first:
        first.sendall(json.dumps(header).encode() + b"\nabcdef" + sha256(b"abcdef").digest())
        assert first.recv(6) == b"taken\n"
        assert first.recv(5) == b"done\n"
    wait_until(lambda: list(receiving.directory.iterdir()) == [], 10, "something is left")


def test_a_part_that_is_damaged_fails_the_whole(receiving: Receiving) -> None:
    header = {"transfer": "ab", "name": "x", "total": 4, "part": 0, "parts": 1, "offset": 0, "size": 4}
    with closing(socket.create_connection(receiving.receiver.address)) as connection:
        connection.sendall(json.dumps(header).encode() + b"\nabcd" + bytes(32))
        assert connection.recv(6) == b"taken\n"
        assert b"damaged" in connection.recv(200)
    assert receiving.files == [] and list(receiving.directory.iterdir()) == []


def test_a_sender_that_dies_leaves_nothing(receiving: Receiving) -> None:
    header = {"transfer": "ab", "name": "x", "total": 4, "part": 0, "parts": 1, "offset": 0, "size": 4}
    with closing(socket.create_connection(receiving.receiver.address)) as connection:
        connection.sendall(json.dumps(header).encode() + b"\nab")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(6) == b"taken\n"
        assert b"error" in connection.recv(200)
    assert list(receiving.directory.iterdir()) == []


@pytest.mark.parametrize("line", [
    b"", b"\n", b"{}\n", b"[]\n", b"[" * 4000 + b"\n", b"GET / HTTP/1.1\r\n", b"x" * 5000,
    *(json.dumps({"transfer": "ab", "name": "x", "total": 4, "part": 0, "parts": 1, "offset": 0, "size": 4}
                 | changed).encode() + b"\n" for changed in (
        {"name": "../x"}, {"name": ".."}, {"name": ""}, {"size": 5}, {"offset": 1}, {"part": 1}, {"parts": 0},
        {"parts": MAX_PARTS + 1}, {"total": -1}, {"total": 10**30, "size": 10**30}, {"name": "n" * 256},
        {"name": "\ud800"}, {"transfer": "../x"}, {"total": "4"}, {"more": 1}))])
def test_what_is_no_part_is_refused(receiving: Receiving, line: bytes) -> None:
    with closing(socket.create_connection(receiving.receiver.address)) as connection:
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(200).startswith(b"error: this is not a part of a file")
    assert list(receiving.directory.iterdir()) == []


def test_connections_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Nobody takes them here: the queue has room for one, and those behind it are not answered."""
    (tmp_path / "file").write_bytes(bytes(1000))
    failures: list[TransferFailed] = []

    def run(port: int) -> None:
        try:
            send(tmp_path / "file", "127.0.0.1", port, 8)
        except TransferFailed as error:
            failures.append(error)

    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        port = listening.getsockname()[1]
        sending = threading.Thread(target=run, args=(port,))
        sending.start()
        wait_until(lambda: _begun_to(port) == 8, 10, "not all connections are begun")
    sending.join(20)
    assert not sending.is_alive()
    assert f"cannot send {tmp_path / 'file'} to 127.0.0.1:{port}" in str(failures[0])


def _begun_to(port: int) -> int:
    """How many connections there are to a port of this machine, made or asked for."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[2] == f"0100007F:{port:04X}" and line.split()[3] in ("01", "02") for line in lines)


def test_a_port_that_is_taken_is_said_once(receiving: Receiving, tmp_path: Path) -> None:
    host, port = receiving.receiver.address
    with pytest.raises(TransferFailed) as refused:
        Receiver(tmp_path, host, port)
    assert str(refused.value) == f"cannot receive at {host}:{port} into {tmp_path}: Address already in use"


def test_nobody_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(TransferFailed, match=r"127\.0\.0\.1:1"):
        send(tmp_path / "file", "127.0.0.1", 1, 2)


@given(st.integers(0, 10**12), st.integers(1, MAX_PARTS))
def test_parts_are_even_and_make_up_the_whole(total: int, parts: int) -> None:
    pieces = split(total, parts)
    assert sum(size for _, size in pieces) == total
    assert max(size for _, size in pieces) - min(size for _, size in pieces) <= 1
    assert all(begin + size == after for (begin, size), (after, _) in pairwise(pieces))
