"""Several nameservers that each own blocks of one namespace, over a real etcd."""

import random
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from speedwell.fs import paths, slots
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.client.names.nameservers import Nameservers
from speedwell.fs.errors import DirectoryNotEmpty, NoReplicaAvailable, QuotaExceeded
from speedwell.fs.etcd_client import EtcdClient
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.namespace_records import DIRECTORY, ROOT_INODE, Inode
from speedwell.fs.proto import speedwell_pb2 as pb
from tests.etcd import EtcdCluster, free_ports, requires_etcd
from tests.local_cluster import SCRIPTS, Daemon
from tests.several_nameservers import NAMESERVER, Installation
from tests.waiting import wait_until

pytestmark = requires_etcd
DATASERVER = str(SCRIPTS / "speedwell-dataserver")


@pytest.fixture
def installation(tmp_path: Path, etcd: EtcdCluster) -> Iterator[Installation]:
    started = Installation(tmp_path, etcd, 2, "--shared")
    wait_until(lambda: len(owners(started)) == 2, 15, "not both own a part")
    yield started
    started.stop()


def owners(installation: Installation) -> dict[str, int]:
    """Blocks by address, as every nameserver says that has not ended; nothing while they differ."""
    said = []
    for nameserver in installation.nameservers:
        if nameserver.process is not None:
            nameservers = Nameservers(nameserver.address, 0.5)
            try:
                reply = nameservers._calls[0].call("Owners", pb.OwnersRequest(), 0.5)
            except Exception:
                return {}
            finally:
                nameservers.close()
            said.append([(each.address, each.first, each.last) for each in reply.owners])
    if not said or any(other != said[0] for other in said):
        return {}
    found: dict[str, int] = {}
    for address, first, last in said[0]:
        found[address] = found.get(address, 0) + last - first + 1
    return found


def directories_by_owner(client: MetadataClient, count: int = 40) -> dict[bool, list[int]]:
    """Directories that the one who owns block 0 owns, and those of the other of two."""
    made: dict[bool, list[int]] = {True: [], False: []}
    for number in range(count):
        inode = client.mkdir(f"/spread{number}").inode
        made[slots.block_of(inode) < slots.BLOCKS // 2].append(inode)
    return made


def faults(etcd: EtcdCluster, installation: Installation) -> list[str]:
    """What does not go together in the records in etcd: names that lead nowhere, inodes without a name or with more
    or fewer than they count, directories that are somewhere else than they say."""
    prefix = f"{installation.nameservers[0].log.parent}/data/".encode()
    client = EtcdClient(etcd.endpoints)
    pairs = {pair.key[len(prefix):]: pair.value for pair in client.range(prefix, prefix[:-1] + b"0").kvs}
    client.close()
    inodes = {records.inode_number(key): Inode.decode(records.inode_number(key), value)
              for key, value in pairs.items() if key[:1] == records.INODE_PREFIX}
    names: dict[int, list[tuple[int, bytes]]] = {number: [] for number in inodes}
    found = []
    for key, value in pairs.items():
        if key[:1] == records.DENTRY_PREFIX:
            kind, number = records.decode_dentry(value)
            place = records.dentry_directory(key), records.dentry_name(key)
            if number not in inodes or inodes[number].kind != kind or place[0] not in inodes:
                found.append(f"{place} leads to {number}, which is not there or something else")
            else:
                names[number].append(place)
    for number, inode in inodes.items():
        if inode.kind == DIRECTORY:
            below = sum(place[0] == number for other, places in names.items() if inodes[other].kind == DIRECTORY
                        for place in places)
            if inode.link_count != 2 + below:
                found.append(f"directory {number} counts {inode.link_count} links and has {below} directories")
            if number != ROOT_INODE and names[number] != [(inode.parent, inode.name)]:
                found.append(f"directory {number} says {(inode.parent, inode.name)} and is at {names[number]}")
        elif inode.link_count != len(names[number]):
            found.append(f"inode {number} counts {inode.link_count} links and has {names[number]}")
    return found


class Changes(threading.Thread):
    """Changes names of its own in directories that all use, and knows what there is to be."""

    def __init__(self, address: str, directories: list[int], seed: int) -> None:
        super().__init__(daemon=True)
        self.names: dict[tuple[int, bytes], int] = {}      # what has that name in which directory
        self.wrong: list[str] = []
        self.done = 0
        self.slowest_seconds = 0.0
        self.pause_seconds = 0.0
        self.stopped = threading.Event()
        self._client = MetadataClient(address, 0, call_timeout_seconds=30)
        self._directories = directories
        self._random = random.Random(seed)
        self._seed = seed
        self._made: list[int] = []

    def run(self) -> None:
        while not self.stopped.is_set():
            began = time.monotonic()
            try:
                self._change()
            except Exception as error:
                self.wrong.append(f"{type(error).__name__}: {error}")
                return
            self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
            self.done += 1
            time.sleep(self.pause_seconds)
        self._client.close()

    def _change(self) -> None:
        self._last = b"%d-%d" % (self._seed, self.done)
        new = self._random.choice(self._directories), self._last
        old = self._random.choice(list(self.names)) if self.names else None
        what = self._random.choice(("link", "directory", "rename", "name", "remove", "remove"))
        if what == "directory":
            self.names[new] = self._client.mkdir(paths.below(*new)).inode
            self._made.append(self.names[new])
        elif old is None or what == "link":
            self.names[new] = self._client.posix.make_symbolic_link(paths.below(*new), b"x").inode
        elif what == "rename":
            self._client.rename(paths.below(*old), paths.below(*new))
            self.names[new] = self.names.pop(old)
        elif what == "name" and self.names[old] not in self._made:
            self._client.posix.link(paths.below(*old), paths.below(*new))
            self.names[new] = self.names[old]
        elif what == "remove":
            (self._client.rmdir if self.names[old] in self._made else self._client.remove)(paths.below(*old))
            del self.names[old]


def change_all_at_once(installation: Installation, etcd: EtcdCluster, disturb: Callable[[int], object], rounds: int,
                       clients: int = 4, pause_seconds: float = 0.0) -> list[Changes]:
    with MetadataClient(installation.address, 0) as client:
        spread = directories_by_owner(client, 24)
        directories = spread[True][:4] + spread[False][:4]
        workers = [Changes(installation.address, directories, seed) for seed in range(clients)]
        for worker in workers:
            worker.pause_seconds = pause_seconds
            worker.start()
        try:
            for number in range(rounds):
                before = [worker.done for worker in workers]
                disturb(number)
                wait_until(lambda before=before: all(
                    worker.wrong or worker.done > done + 3 for worker, done in zip(workers, before, strict=True)),
                    40, "a client does not go on")
        finally:
            for worker in workers:
                worker.stopped.set()
            for worker in workers:
                worker.join(40)
        assert [worker.wrong for worker in workers] == [[]] * clients
        expected = {place: number for worker in workers for place, number in worker.names.items()}
        there = {(directory, entry.name): entry.attributes.inode for directory in directories
                 for entry in client.list(paths.of_inode(directory))}
        assert there == expected
        assert faults(etcd, installation) == []
    return workers


def test_changes_across_owners_are_whole_and_happen_once(installation: Installation, etcd: EtcdCluster) -> None:
    workers = change_all_at_once(installation, etcd, lambda number: time.sleep(0.1), 20)
    print(sum(each.done for each in workers), "changes, slowest s:", max(each.slowest_seconds for each in workers))


@pytest.mark.parametrize("signal", ["kill", "pause"])
def test_an_owner_that_ends_or_stands_still_is_replaced(installation: Installation, etcd: EtcdCluster,
                                                         signal: str) -> None:
    def disturb(number: int) -> None:
        nameserver = installation.nameservers[number % 2]
        wait_until(lambda: len(owners(installation)) == 2, 20, "not both own a part again")
        if signal == "kill":
            nameserver.kill()
            time.sleep(0.2)
            nameserver.start()
        else:
            nameserver.pause()
            time.sleep(3)
            nameserver.resume()

    workers = change_all_at_once(installation, etcd, disturb, 4)
    print(sum(each.done for each in workers), "changes, slowest s:", max(each.slowest_seconds for each in workers))


def test_owners_join_and_leave_while_names_change(installation: Installation, etcd: EtcdCluster,
                                                  tmp_path: Path) -> None:
    third = Daemon("n2", [NAMESERVER, "--directory", str(tmp_path / "n2"), "--etcd", ",".join(etcd.endpoints),
                          "--etcd-prefix", str(tmp_path), "--shared"], tmp_path / "n2.log")

    def disturb(number: int) -> None:
        if number % 2:
            third.stop()
            installation.nameservers.remove(third)
        else:
            third.start()
            installation.nameservers.append(third)
        wait_until(lambda: len(owners(installation)) == 3 - number % 2, 15, "the blocks do not move")

    workers = change_all_at_once(installation, etcd, disturb, 4)
    print(sum(each.done for each in workers), "changes, slowest s:", max(each.slowest_seconds for each in workers))


def requests_answered(ports: list[int]) -> Counter[str]:
    """By all nameservers so far, by name, without what they and dataservers say every second."""
    found: Counter[str] = Counter()
    for port in ports:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        for name, count in re.findall(r'nameserver_request_seconds_count{request="(\w+)"} ([0-9.]+)', text):
            found[name] += int(float(count))
    del found["Statistics"], found["Heartbeat"]
    return found


def test_a_request_costs_one_message_and_a_change_across_owners_two(tmp_path: Path, etcd: EtcdCluster) -> None:
    ports = free_ports(2)
    started = Installation(tmp_path, etcd, 0)
    started.nameservers = [Daemon(f"n{n}", [
        NAMESERVER, "--directory", str(tmp_path / f"n{n}"), "--etcd", ",".join(etcd.endpoints), "--etcd-prefix",
        str(tmp_path), "--shared", "--metrics", f"127.0.0.1:{port}"], tmp_path / f"n{n}.log")
        for n, port in enumerate(ports)]
    dataserver = Daemon("d0", [DATASERVER, "--id", "d0", "--directory", str(tmp_path / "d0")], tmp_path / "d0.log")
    try:
        for nameserver in started.nameservers:
            nameserver.start()
        wait_until(lambda: len(owners(started)) == 2, 15, "not both own a part")
        dataserver.launch("--nameserver", started.address)
        with MetadataClient(started.address, 0) as client:
            wait_until(lambda: client.statistics().dataservers, 15, "the dataserver does not register")
            spread = directories_by_owner(client, 16)

            def cost(count: int, call: Callable[[int], object]) -> dict[str, int]:
                before = requests_answered(ports)
                for number in range(count):
                    call(number)
                return dict(requests_answered(ports) - before)

            for there, here in ((spread[True][0], spread[False][0]), (spread[False][1], spread[True][1])):
                wait_until(lambda there=there: _can_create(client, there), 15, "no dataserver is known")
                assert cost(100, lambda number, there=there: client.create(
                    paths.below(there, b"f%03d" % number), replication=1)) == {"Create": 100}
                assert cost(20, lambda number, there=there: client.lookup(
                    paths.below(there, b"f%03d" % number))) == {"Lookup": 20}
                assert cost(1, lambda _, there=there: client.list_columns(
                    paths.of_inode(there), statuses=True)) == {"List": 1}
                assert cost(20, lambda number, there=there: client.rename(
                    paths.below(there, b"f%03d" % number), paths.below(there, b"g%03d" % number))) == {"Rename": 20}
                assert cost(20, lambda number, there=there, here=here: client.rename(
                    paths.below(there, b"g%03d" % number), paths.below(here, b"h%03d" % number)
                    )) == {"Rename": 20, "Owners": 20}
        assert faults(etcd, started) == []
    finally:
        dataserver.stop()
        started.stop()


def _can_create(client: MetadataClient, directory: int) -> bool:
    try:
        client.create(paths.below(directory, b"first"), replication=1)
    except NoReplicaAvailable:
        return False
    return True


@pytest.mark.parametrize(("arguments", "why"), [
    (["--shared"], "--shared: it takes --etcd"),
    (["--shared", "--etcd", "127.0.0.1:1", "--listen", "0.0.0.0:0"], "--listen must name the address"),
])
def test_what_cannot_be_shared_is_refused(tmp_path: Path, arguments: list[str], why: str) -> None:
    ended = subprocess.run([NAMESERVER, "--directory", str(tmp_path / "n"), "--insecure", "fabric", *arguments],
                           capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0 and why in ended.stderr
    assert not (tmp_path / "n").exists()


def test_two_nameservers_answer_for_one_namespace(installation: Installation) -> None:
    assert set(owners(installation).values()) == {128}
    with MetadataClient(installation.address, 0) as client, MetadataClient(
            ",".join(reversed(installation.address.split(","))), 0) as other:
        spread = directories_by_owner(client)
        here, there = spread[True][0], spread[False][0]
        for directory in (here, there):
            link = client.posix.make_symbolic_link(paths.below(directory, b"link"), b"target")
            assert slots.slot_of(link.inode) == slots.slot_of(directory)
            assert other.lookup(paths.below(directory, b"link")).inode == link.inode
        client.rename(paths.below(here, b"link"), paths.below(there, b"moved"))
        assert [entry.name for entry in other.list(paths.of_inode(there))] == [b"link", b"moved"]
        assert other.list(paths.of_inode(here)) == []
        client.posix.link(paths.below(there, b"moved"), paths.below(here, b"again"))
        assert other.lookup(paths.below(here, b"again")).link_count == 2
        other.remove(paths.below(there, b"moved"))
        assert client.lookup(paths.below(here, b"again")).link_count == 1
        client.set_attributes(paths.below(here, b"again"), mtime_ns=5)
        assert other.lookup(paths.below(here, b"again")).mtime_ns == 5
        with pytest.raises(DirectoryNotEmpty):
            client.rmdir(_path(client, there))
        client.remove(paths.below(there, b"link"))
        client.rmdir(_path(client, there))
        statistics = client.statistics()
        assert (statistics.files, statistics.directories) == (1, 40)


def _path(client: MetadataClient, directory: int) -> bytes:
    return next(paths.join(b"/", entry.name) for entry in client.list("/") if entry.attributes.inode == directory)


def test_limits_and_the_trash_hold_whoever_owns_what_lies_below(installation: Installation,
                                                                etcd: EtcdCluster) -> None:
    with MetadataClient(installation.address, 0) as client, MetadataClient(installation.address, 0) as other:
        spread = directories_by_owner(client, 24)
        for number in (*spread[True][:3], *spread[False][:3]):
            other.posix.make_symbolic_link(paths.below(number, b"before"), b"x")
        client.operator.set_quota("/", max_files=24 + 6 + 4 + 1)
        wait_until(lambda: not client.quotas()[0].counting, 20, "what was there is not counted")
        assert client.quotas()[0].used_files == 24 + 6 + 1
        for number in (spread[True][0], spread[False][0]):
            for name in (b"1", b"2"):
                other.posix.make_symbolic_link(paths.below(number, name), b"x")
        for number in (spread[True][1], spread[False][1]):
            with pytest.raises(QuotaExceeded):
                other.posix.make_symbolic_link(paths.below(number, b"more"), b"x")
        client.trash.keep("/", 10**12)
        for number in (spread[True][0], spread[False][0]):
            other.remove(paths.below(number, b"1"))
        assert {each.path.rpartition(b"/")[2] for each in client.trash.entries()} == {b"1"}
        for entry, number in zip(client.trash.entries(), (spread[False][2], spread[True][2]), strict=True):
            client.trash.restore(entry, paths.below(number, b"back"))
        assert list(client.trash.entries()) == []
        assert client.quotas()[0].used_files == 24 + 6 + 4 + 1
        client.trash.keep("/", 0)
        other.remove(paths.below(spread[False][2], b"back"))
        assert list(client.trash.entries()) == []
        assert faults(etcd, installation) == []


def test_a_dump_of_a_shared_namespace_fills_another_shared_one(installation: Installation, etcd: EtcdCluster,
                                                               tmp_path: Path) -> None:
    with MetadataClient(installation.address, 0) as client:
        spread = directories_by_owner(client, 24)
        for number in (*spread[True], *spread[False]):
            client.posix.make_symbolic_link(paths.below(number, b"link"), b"%d" % number)
        client.operator.set_quota(_path(client, spread[False][0]), max_files=9)
        *_, last = replies = list(client.copies.dump())
    dumped = [record for reply in replies for record in reply.records]
    second = tmp_path / "second"
    second.mkdir()
    other = Installation(second, etcd, 2, "--shared")
    try:
        wait_until(lambda: len(owners(other)) == 2, 15, "not both own a part")
        with MetadataClient(other.address, 0) as client:
            client.copies.load(dumped, last.next_inode)
            for number in (*spread[True], *spread[False]):
                assert client.lookup(paths.below(number, b"link")).target == b"%d" % number
                client.posix.make_symbolic_link(paths.below(number, b"another"), b"x")
            assert [each.max_files for each in client.quotas()] == [9]
        assert faults(etcd, other) == []
    finally:
        other.stop()


def test_an_owner_whose_mirror_is_lost_has_it_again_from_etcd(installation: Installation) -> None:
    with MetadataClient(installation.address, 0) as client:
        spread = directories_by_owner(client, 24)
        second = installation.nameservers[1]
        second.kill()
        shutil.rmtree(second.log.parent / "n1" / "mirror")
        second.start()
        wait_until(lambda: len(owners(installation)) == 2, 15, "not both own a part again")
        for number in (*spread[True], *spread[False]):
            client.posix.make_symbolic_link(paths.below(number, b"link"), b"x")
