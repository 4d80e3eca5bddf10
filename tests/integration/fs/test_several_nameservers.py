"""Several nameservers over a real etcd: one leads, another takes over, nothing acknowledged is lost."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.fs.client import Client
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.errors import AlreadyExists, NameserverUnavailable, NoSuchFile
from tests.etcd import EtcdCluster, requires_etcd
from tests.local_cluster import Daemon
from tests.several_nameservers import NAMESERVER, Installation
from tests.waiting import wait_until

pytestmark = requires_etcd
DATASERVER = str(Path(sys.executable).parent / "speedwell-dataserver")
TAKEOVER_SECONDS = 30.0     # a quiet machine takes three


@pytest.fixture
def installation(tmp_path: Path, etcd: EtcdCluster) -> Iterator[Installation]:
    started = Installation(tmp_path, etcd, 3)
    yield started
    started.stop()


def test_clients_go_on_when_the_leader_is_killed_and_nothing_acknowledged_is_lost(installation: Installation) -> None:
    leader = installation.leader()
    client = MetadataClient(installation.address, 0, call_timeout_seconds=TAKEOVER_SECONDS)
    made: list[str] = []
    longest_seconds = [0.0]
    stop = threading.Event()

    def make_directories() -> None:
        number = 0
        while not stop.is_set():
            name = f"/d{number}"
            number += 1
            began = time.monotonic()
            client.mkdir(name)
            made.append(name)
            longest_seconds[0] = max(longest_seconds[0], time.monotonic() - began)

    worker = threading.Thread(target=make_directories)
    worker.start()
    try:
        wait_until(lambda: len(made) > 50, 15, "no directories are made")
        leader.kill()
        before = len(made)
        wait_until(lambda: len(made) > before + 20, 60, "clients do not go on")
    finally:
        stop.set()
        worker.join()
    assert longest_seconds[0] < TAKEOVER_SECONDS
    assert [entry.name.decode() for entry in client.list("/")] == sorted(name[1:] for name in made)
    client.close()


def test_a_leader_that_was_paused_answers_nothing_old(installation: Installation) -> None:
    old = installation.leader()
    others = ",".join(nameserver.address for nameserver in installation.nameservers if nameserver is not old)
    client = MetadataClient(others, 0, call_timeout_seconds=TAKEOVER_SECONDS)
    old.pause()
    try:
        client.mkdir("/new")
    finally:
        old.resume()
    direct = MetadataClient(old.address, 0, call_timeout_seconds=1.0)
    with pytest.raises(NameserverUnavailable):
        direct.lookup("/new")
    with pytest.raises(NameserverUnavailable):
        direct.mkdir("/late")
    with pytest.raises(NoSuchFile):
        client.lookup("/late")
    direct.close()
    client.close()


def test_a_nameserver_that_comes_back_has_what_was_done_without_it(installation: Installation) -> None:
    first = installation.leader()
    first.kill()
    client = MetadataClient(installation.address, 0, call_timeout_seconds=TAKEOVER_SECONDS)
    client.mkdir("/while-away")
    first.start()
    for nameserver in installation.nameservers:
        if nameserver is not first:
            nameserver.kill()
    assert client.lookup("/while-away").inode
    with pytest.raises(AlreadyExists):
        client.mkdir("/while-away")
    client.close()


def test_a_nameserver_stops_in_time_while_it_follows_and_while_it_leads(installation: Installation) -> None:
    leader = installation.leader()
    follower = next(nameserver for nameserver in installation.nameservers if nameserver is not leader)
    for nameserver in (follower, leader):
        nameserver.stop()


def test_appends_and_reads_go_on_under_a_new_leader(installation: Installation, tmp_path: Path) -> None:
    dataservers = [Daemon(f"d{n}", [DATASERVER, "--id", f"d{n}", "--nameserver", installation.address, "--rack",
                                    f"r{n}", "--directory", str(tmp_path / f"d{n}")], tmp_path / f"d{n}.log")
                   for n in range(3)]
    for dataserver in dataservers:
        dataserver.start()
    try:
        with Client(installation.address) as client:
            wait_until(lambda: sum(status.server.alive for status in client.statistics().dataservers) == 3, 15,
                       "the dataservers do not register")
            client.create("/log")
            client.append("/log", b"before ")
            installation.leader().kill()
            client.append("/log", b"after")
            with client.open_read("/log") as reader:
                assert reader.read(0, 100) == b"before after"
    finally:
        for dataserver in dataservers:
            dataserver.kill()


def test_an_etcd_that_cannot_be_is_refused_with_a_message(tmp_path: Path) -> None:
    nameserver = Daemon("n", [NAMESERVER, "--directory", str(tmp_path / "n"), "--etcd", "nonsense"], tmp_path / "log")
    nameserver.launch()
    assert nameserver.process is not None and nameserver.process.wait(60) == 2
    assert "etcd: 'nonsense' is not HOST:PORT" in (tmp_path / "log").read_text()


def test_a_mistyped_prefix_deletes_nothing_and_is_told(tmp_path: Path, etcd: EtcdCluster) -> None:
    installation = Installation(tmp_path, etcd, 1, "--deletion-grace", "0", "--recovery-grace", "1")
    nameserver, = installation.nameservers
    dataserver = Daemon("d0", [DATASERVER, "--id", "d0", "--nameserver", installation.address, "--directory",
                               str(tmp_path / "d0")], tmp_path / "d0.log")
    try:
        installation.leader()
        dataserver.start()
        with Client(installation.address) as client:
            wait_until(lambda: client.statistics().dataservers, 15, "the dataserver does not register")
            client.create("/f", replication=1)
            client.append("/f", b"content")

        nameserver.stop()
        nameserver.launch("--etcd-prefix", f"{tmp_path}/mistyped")     # over the mirror of the right one
        nameserver.wait_ready()
        wait_until(lambda: "name the right --etcd and --etcd-prefix" in nameserver.log.read_text(), 15,
                   "the mirror was given up")
        nameserver.kill()
        nameserver.launch("--etcd-prefix", f"{tmp_path}/mistyped", "--directory", str(tmp_path / "new"))
        nameserver.wait_ready()
        wait_until(lambda: "is refused and deletes nothing" in dataserver.log.read_text(), 15, "it is not refused")
        time.sleep(4)

        nameserver.stop()
        nameserver.launch()
        nameserver.wait_ready()
        installation.leader()
        with Client(installation.address) as client:
            wait_until(lambda: client.statistics().dataservers[0].server.alive, 15, "it does not come back")
            with client.open_read("/f") as reader:
                assert reader.read(0, 100) == b"content"
            assert not client.statistics().warnings
    finally:
        dataserver.kill()
        installation.stop()
