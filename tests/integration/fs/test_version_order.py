"""New versions and appends of one file have one order, whoever stops at whatever moment: no acknowledged append is
missing from the version that replaces the one it went to."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from speedwell.fs.client import Changes, Client
from speedwell.fs.errors import InvalidArgument, SpeedwellError, StaleEpoch
from speedwell.fs.proto.speedwell_pb2 import PublishRequest
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

BASE = b"b" * 100_000
MORE = b"m" * 25_000

CHANGE_AND_STOP = """
import os, signal, sys
from speedwell.fs.client import Changes, Client

def send(channel):
    channel.send_bytes([b"changed"])
    os.kill(os.getpid(), signal.SIGSTOP)

with Client(sys.argv[1], metadata_cache_seconds=0) as client:
    client.change("/f", Changes([(0, 7)], send))
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "c", dataservers=3) as cluster:
        yield cluster


def make(client: Client) -> None:
    client.create("/f")
    client.append("/f", BASE)


def beginning(data: bytes) -> Changes:
    return Changes([(0, len(data))], lambda channel: channel.send_bytes([data]))


def content(client: Client) -> bytes:
    with client.open_read("/f") as reader:
        return reader.read(0, reader.size)


def stopped(process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_client_that_stops_in_the_middle_of_a_change_does_not_undo_appends(cluster: LocalCluster) -> None:
    """It goes on after so long that others have appended: to the old version, if nobody has told them of the new."""
    client = cluster.client(metadata_cache_seconds=0)
    make(client)
    process = subprocess.Popen([sys.executable, "-c", CHANGE_AND_STOP, cluster.nameserver.address])
    try:
        wait_until(lambda: stopped(process), 15, "the client does not stop")
        time.sleep(8.5)     # for so long the seal of a base used to last
        with client.open_append("/f") as appender:
            appender.write(MORE)
            appender._drain()       # acknowledged; the length is not at the nameserver yet
            os.kill(process.pid, signal.SIGCONT)
            assert process.wait(60) == 0
            time.sleep(2.1)         # then the appender asks for the newest version
            appender.write(MORE)
            appender.flush()
        assert content(client) == b"changed" + BASE[7:] + MORE + MORE
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("victim", ["nameserver", "primary"])
def test_a_publication_without_an_answer_costs_no_append(cluster: LocalCluster, victim: str) -> None:
    """Whoever is to publish the version stops at any moment while versions are made and others append."""
    client, other = (cluster.client(metadata_cache_seconds=0) for _ in range(2))
    make(client)
    changes, acknowledged, ends = 0, list[int](), threading.Event()

    def change() -> None:
        nonlocal changes
        while not ends.is_set():
            try:
                client.change("/f", beginning(b"%08d" % changes))
                changes += 1
                time.sleep(0.01)    # others are to have a chance to append to a version before it is replaced
            except SpeedwellError:
                continue

    def append() -> None:
        for number in itertools.count():
            if ends.is_set():
                return
            with suppress(SpeedwellError):      # it may have been carried out
                other.append("/f", b"%08d" % number)
                acknowledged.append(number)

    threads = [threading.Thread(target=work) for work in (change, append)]
    for thread in threads:
        thread.start()
    for pause_seconds in (0.3, 1.5, 4.5):
        daemon = cluster.nameserver if victim == "nameserver" else cluster.dataserver(
            cluster.client(metadata_cache_seconds=0).lookup("/f").replicas[0].dataserver_id)
        daemon.pause()
        time.sleep(pause_seconds)
        daemon.resume()
        time.sleep(1.0)
    wait_until(lambda: changes > 10 and len(acknowledged) > 10, 60, "too little goes on")
    ends.set()
    for thread in threads:
        thread.join(40)
        assert not thread.is_alive()
    found = content(cluster.client(metadata_cache_seconds=0))
    tail = found[len(BASE):]
    numbers = [int(tail[start:start + 8]) for start in range(0, len(tail), 8)]
    assert len(set(numbers)) == len(numbers)
    assert [number for number in numbers if number in set(acknowledged)] == acknowledged


def test_an_append_to_a_version_that_was_replaced_goes_to_the_new_one_also_after_a_restart(
        cluster: LocalCluster) -> None:
    """The primary remembers what it was asked to replace."""
    client = cluster.client(metadata_cache_seconds=0)
    make(client)
    attributes = client.lookup("/f")
    with client.open_append("/f", attributes) as appender:
        changed = client.change("/f", Changes([(0, 3)], lambda channel: channel.send_bytes([b"new"])))
        assert changed.file_id != attributes.file_id
        cluster.restart()
        appender.write(MORE)
        appender.flush()
    assert content(client) == b"new" + BASE[3:] + MORE


def test_a_file_without_a_byte_takes_no_append_after_it_was_replaced(cluster: LocalCluster) -> None:
    client = cluster.client(metadata_cache_seconds=0)
    attributes, _ = client.metadata.create("/empty")
    with client.open_append("/empty", attributes) as appender:
        client.change("/empty", Changes([(4, 8)], lambda channel: channel.send_bytes([b"data"])))
        appender.write(b"more")
        appender.flush()
    with client.open_read("/empty") as reader:
        assert reader.read(0, 100) == b"\0\0\0\0datamore"


def test_only_the_primary_publishes(cluster: LocalCluster) -> None:

    client = cluster.client(metadata_cache_seconds=0)
    make(client)
    now = client.lookup("/f")
    request = PublishRequest(inode=now.inode, base=now.file_id, base_size=now.size, size=5, epoch=now.epoch,
                             file_id="0123abcd-0000-4000-8000-00000000000a")
    for who, error in (("", InvalidArgument), (now.replicas[1].dataserver_id, StaleEpoch)):
        request.dataserver_id = who
        with pytest.raises(error):
            client.metadata.requests.ask("Publish", request)
    assert content(client) == BASE
