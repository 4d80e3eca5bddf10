"""A file over several connections: it arrives as it was or not at all."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coflow.errors import TransferFailed
from coflow.reporter import Reporter
from coflow.settings import SchedulerAddress
from coflow.transfer import MAX_PARTS, Receiver, send, split

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


def test_a_part_that_is_damaged_fails_the_whole(receiving: Receiving) -> None:
    header = {"transfer": "ab", "name": "x", "total": 4, "part": 0, "parts": 1, "offset": 0, "size": 4}
    with closing(socket.create_connection(receiving.receiver.address)) as connection:
        connection.sendall(json.dumps(header).encode() + b"\nabcd" + bytes(32))
        assert b"damaged" in connection.recv(200)
    assert receiving.files == [] and list(receiving.directory.iterdir()) == []


def test_a_sender_that_dies_leaves_nothing(receiving: Receiving) -> None:
    header = {"transfer": "ab", "name": "x", "total": 4, "part": 0, "parts": 1, "offset": 0, "size": 4}
    with closing(socket.create_connection(receiving.receiver.address)) as connection:
        connection.sendall(json.dumps(header).encode() + b"\nab")
        connection.shutdown(socket.SHUT_WR)
        assert b"error" in connection.recv(200)
    assert list(receiving.directory.iterdir()) == []


@pytest.mark.parametrize("line", [
    b"", b"\n", b"{}\n", b"[]\n", b"GET / HTTP/1.1\r\n", b"x" * 5000,
    *(json.dumps({"transfer": "ab", "name": "x", "total": 4, "part": 0, "parts": 1, "offset": 0, "size": 4}
                 | changed).encode() + b"\n" for changed in (
        {"name": "../x"}, {"name": ".."}, {"name": ""}, {"size": 5}, {"offset": 1}, {"part": 1}, {"parts": 0},
        {"parts": MAX_PARTS + 1}, {"total": -1}, {"transfer": "../x"}, {"total": "4"}, {"more": 1}))])
def test_what_is_no_part_is_refused(receiving: Receiving, line: bytes) -> None:
    with closing(socket.create_connection(receiving.receiver.address)) as connection:
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(200).startswith(b"error: this is not a part of a file")
    assert list(receiving.directory.iterdir()) == []


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
