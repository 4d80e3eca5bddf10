"""Files that are written and read while nameservers join and leave those that own their namespace."""

import subprocess
import threading
import time
from pathlib import Path

import pytest

from speedwell.fs import slots
from speedwell.fs.client import Client
from tests.etcd import requires_etcd
from tests.local_cluster import OWNERS_VARIABLE, SCRIPTS, LocalCluster
from tests.owner_daemons import OwnerDaemons
from tests.waiting import wait_until

pytestmark = requires_etcd
WRITERS, PIECE_BYTES, PIECES = 4, 5000, 6


def read(client: Client, path: str, size: int) -> bytes:
    with client.open_read(path) as reader:
        return bytes(reader.read(0, size))


class Writer(threading.Thread):
    """Makes file after file, each in some directory, by appends, and reads each again."""

    def __init__(self, cluster: LocalCluster, number: int) -> None:
        super().__init__(daemon=True)
        self.client = cluster.client()
        self.stopped = threading.Event()
        self.written: dict[str, bytes] = {}
        self.wrong: list[str] = []
        self.slowest_seconds = 0.0
        self._number = number

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                self._write()
        except Exception as error:
            self.wrong.append(f"{type(error).__name__}: {error}")

    def _write(self) -> None:
        turn = len(self.written)
        path, content = f"/d{turn % 16}/{self._number}-{turn}", b""
        began = time.monotonic()
        self.client.create(path)
        for piece in range(PIECES):
            data = bytes([turn % 256, piece]) * (PIECE_BYTES // 2)
            self.client.append(path, data)
            content += data
        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
        self.written[path] = content
        if read(self.client, path, len(content)) != content:
            self.wrong.append(f"{path} has other bytes")


def test_files_are_written_and_read_while_owners_join_and_leave(tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWNERS_VARIABLE, "2")
    with LocalCluster(tmp_path, dataservers=3, replication=2, chunk_size=1 << 16) as cluster:
        assert isinstance(cluster.nameserver, OwnerDaemons)
        client = cluster.client()
        for number in range(16):
            client.mkdir(f"/d{number}")
        writers = [Writer(cluster, number) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        third = cluster.nameserver.another("nameserver-2")
        for _ in range(2):
            done = sum(len(writer.written) for writer in writers)
            third.start()
            cluster.nameserver.members.append(third)
            wait_until(cluster.nameserver.all_own, 20, "the third owns nothing")
            third.stop()
            cluster.nameserver.members.remove(third)
            wait_until(cluster.nameserver.all_own, 20, "the third still owns something")
            wait_until(lambda done=done: sum(len(writer.written) for writer in writers) > done + 8, 60,
                       "no files are written any more")
        for writer in writers:
            writer.stopped.set()
        for writer in writers:
            writer.join(60)
        assert [writer.wrong for writer in writers] == [[]] * WRITERS
        print(sum(len(writer.written) for writer in writers), "files, the slowest took s:",
              max(writer.slowest_seconds for writer in writers))
        assert len({slots.block_of(client.lookup(path).inode) for writer in writers for path in writer.written}) > 4
        for writer in writers:
            for path, content in writer.written.items():
                assert read(client, path, len(content)) == content
        checked = subprocess.run([str(SCRIPTS / "speedwell"), "fsck", "--nameserver", cluster.nameserver.address],
                                 capture_output=True, text=True, timeout=120, check=False)
        assert checked.returncode == 0 and "clean" in checked.stdout, checked.stdout + checked.stderr
