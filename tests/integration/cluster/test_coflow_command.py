"""`speedwell coflow send` and `recv` as processes: what an interrupt and odd settings leave."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from speedwell.cluster.processes import program
from tests.waiting import wait_until

SIZE_BYTES = 50_000_000


def start(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen([program("speedwell"), "coflow", *arguments], stdout=output, stderr=output)


@pytest.fixture
def receiving(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A receiver and its address."""
    log = tmp_path / "recv.log"
    process = start("recv", "--forever", "--listen", "127.0.0.1:0", "--directory", str(tmp_path / "in"), log=log)
    try:
        wait_until(lambda: log.read_bytes().endswith(b"\n"), 20, "nobody receives")
        yield process, log.read_text().split()[1]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_a_sender_at_once(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "file").write_bytes(bytes(SIZE_BYTES))
    with socket.create_server(("127.0.0.1", 0)) as deaf:      # takes nothing but what its sockets hold
        process = start("send", str(tmp_path / "file"), f"127.0.0.1:{deaf.getsockname()[1]}", "--flows", "2",
                        log=tmp_path / "send.log")
        connections = [deaf.accept()[0] for _ in range(2)]
        process.send_signal(number)
        assert process.wait(60) == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_receiver_leaves_nothing_of_what_has_not_arrived(
        receiving: tuple[subprocess.Popen[bytes], str], tmp_path: Path, number: signal.Signals) -> None:
    process, address = receiving
    host, port = address.split(":")
    header = b'{"transfer": "ab", "name": "x", "total": 4, "part": 0, "parts": 1, "offset": 0, "size": 4}\n'
    with closing(socket.create_connection((host, int(port)))) as connection:
        connection.sendall(header + b"ab")
        wait_until(lambda: list((tmp_path / "in").iterdir()), 15, "the part is not taken")
        process.send_signal(number)
        assert process.wait(60) == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    assert list((tmp_path / "in").iterdir()) == []


def test_a_receiver_that_dies_ends_its_senders_with_a_message(
        receiving: tuple[subprocess.Popen[bytes], str], tmp_path: Path) -> None:
    process, address = receiving
    (tmp_path / "large").write_bytes(b"")
    os.truncate(tmp_path / "large", 1 << 40)
    log = tmp_path / "send.log"
    sending = start("send", str(tmp_path / "large"), address, log=log)
    wait_until(lambda: list((tmp_path / "in").iterdir()), 20, "the transfer does not begin")
    process.kill()
    assert sending.wait(60) == 1
    assert log.read_text().startswith("speedwell: ") and "did not arrive" in log.read_text()


def test_a_scheduler_whose_name_is_not_known_is_said(
        receiving: tuple[subprocess.Popen[bytes], str], tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "file").write_bytes(b"content")
    log = tmp_path / "send.log"
    assert start("send", str(tmp_path / "file"), receiving[1], "--scheduler", "nobody.invalid", "--key-file",
                 str(tmp_path / "key"), log=log).wait(60) == 1
    assert "nobody.invalid" in log.read_text()
    assert list((tmp_path / "in").iterdir()) == []
