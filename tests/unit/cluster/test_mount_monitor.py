"""What `speedwell top` and `speedwell accesslog` make of what mounts say."""

import errno
import json
import os
import socket
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from speedwell.cluster import mount_monitor
from speedwell.cluster.commands.accesslog import line_of
from speedwell.cluster.commands.top import COLUMNS, rows
from speedwell.cluster.errors import NotRunning
from speedwell.cluster.mount_monitor import Mounts, Source, Statistics, activity, follow
from speedwell.fs.mount_table import FILESYSTEM_TYPE, Mount
from speedwell.fuse_mount.access_log import AccessLog
from speedwell.fuse_mount.measures import BOUNDS_SECONDS
from speedwell.fuse_mount.monitor import Monitor


def said(clock_seconds: float, **changes: Any) -> Statistics:
    return Statistics.parse(json.dumps(answer(clock_seconds, **changes)).encode())


def answer(clock_seconds: float, *, read_bytes: int = 0, errors: Any = (), open_files: int = 0,
           **operations: tuple[float, dict[int, int]]) -> dict[str, Any]:
    """Of each operation its time and how many a bucket has."""
    return {"clock_seconds": clock_seconds, "read_bytes": read_bytes, "written_bytes": 0, "open_files": open_files,
            "errors": errors, "operations": {
                name: {"seconds": seconds, "buckets": [at.get(index, 0) for index in range(len(BOUNDS_SECONDS) + 1)]}
                for name, (seconds, at) in operations.items()}}


def test_rates_and_latencies_are_of_the_time_between_two_answers() -> None:
    before = said(10, read_bytes=1000, getattr=(5.0, {20: 5}))
    now = said(12, read_bytes=5000, open_files=3, getattr=(5.1, {20: 5, 0: 8}), read=(0.3, {4: 2}))
    done = activity(before, now)
    assert (done.operations, done.read_bytes, done.open_files) == (5.0, 2000.0, 3)
    assert done.mean_seconds == pytest.approx(0.04)
    assert BOUNDS_SECONDS[3] < done.p99_seconds < BOUNDS_SECONDS[4]


def test_waiting_for_a_lock_is_an_operation_and_no_latency() -> None:
    done = activity(said(0), said(1, setlk=(60.0, {21: 1}), read=(0.001, {3: 1})))
    assert done.operations == 2
    assert done.mean_seconds == pytest.approx(0.001)
    assert done.p99_seconds < 0.001


def test_names_that_there_are_not_are_no_errors() -> None:
    done = activity(said(0), said(1, errors=[["lookup", errno.ENOENT, 50], ["read", errno.EIO, 2]]))
    assert done.errors == 2


def test_a_mount_that_does_nothing_has_zeros() -> None:
    done = activity(said(0), said(1))
    assert (done.operations, done.mean_seconds, done.p99_seconds, done.errors) == (0, 0, 0, 0)


def test_rows_are_sorted_and_who_does_not_answer_comes_last() -> None:
    def source(name: str, count: int, problem: str = "") -> Source:
        return cast(Source, SimpleNamespace(mount=Mount(Path(name), FILESYSTEM_TYPE, ""), problem=problem,
                                            before=said(0), statistics=said(1, getattr=(0.0, {0: count}))))

    found = rows([source("/b", 3), source("/away", 0, "no answer"), source("/a", 7), source("/c", 12)], "ops")
    assert [row[:2] for row in found] == [("/c", "12"), ("/a", "7"), ("/b", "3"), ("/away", "no answer")]
    assert [row[0] for row in rows([source("/b", 3), source("/a", 7)], "mount")] == ["/a", "/b"]
    assert all(len(row) == len(COLUMNS) for row in found)


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mount:
    """One whose socket lies where tests may put it."""
    for module in ("speedwell.cluster.mount_monitor", "speedwell.fuse_mount.monitor"):
        monkeypatch.setattr(f"{module}.socket_path", lambda owner, device: tmp_path / "sockets" / device)
    return Mount(Path("/m"), FILESYSTEM_TYPE, "speedwell@h:1", (f"user_id={os.getuid()}",), "0:99")


def monitor(log: AccessLog) -> Monitor:
    made = Monitor(lambda: answer(1.0), log)
    made.start(os.makedev(0, 99))
    return made


def test_a_mount_is_asked_again_and_again_over_one_connection(mount: Mount) -> None:
    opened = monitor(AccessLog())
    watched = Mounts()
    for _ in range(3):
        [source] = watched.look([mount])
        assert (source.problem, source.statistics) == ("", said(1.0))
    assert watched.look([]) == []
    opened.stop()
    [source] = watched.look([mount])
    assert source.problem == "no answer"


def test_one_that_does_not_answer_is_waited_for_once(mount: Mount, tmp_path: Path) -> None:
    (tmp_path / "sockets").mkdir()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "sockets" / "0:99"))
        silent.listen()
        watched = Mounts()
        for seconds in (0.05, 3600):
            [source] = watched.look([mount], seconds)
            assert source.problem == "no answer"


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b"5", b"\xff", b"[" * 100_000, json.dumps(
    {**answer(1.0), "clock_seconds": float("nan")}).encode(), json.dumps({**answer(1.0), "errors": 5}).encode(),
    json.dumps({**answer(1.0), "read_bytes": float("inf")}).encode(),
    json.dumps({**answer(1.0), "operations": {"read": {"seconds": 1, "buckets": [1, 2]}}}).encode(),
    b"x" * 3_000_000], ids=lambda line: line[:20].decode(errors="replace"))
def test_nonsense_of_another_users_mount_is_no_answer(line: bytes, mount: Mount, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        Statistics.parse(line)
    (tmp_path / "sockets").mkdir()
    with socket.socket(socket.AF_UNIX) as hostile:
        hostile.bind(str(tmp_path / "sockets" / "0:99"))
        hostile.listen()

        def speak() -> None:
            with hostile.accept()[0] as connection, suppress(OSError):
                connection.sendall(line if len(line) > 1_000_000 else line + b"\n")
                connection.recv(100)
                connection.recv(100)

        speaking = threading.Thread(target=speak)
        speaking.start()
        [source] = Mounts().look([mount], 20)
        assert (source.problem, source.connection) == ("no answer", None)
        speaking.join()


@pytest.mark.parametrize(("version", "to_upgrade"), [(2, "upgrade this command"), (0, "mount it again")])
def test_a_mount_of_another_version_is_named_and_says_which_side_to_upgrade(
        version: int, to_upgrade: str, mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Monitor(lambda: {**answer(1.0), "version": version}, AccessLog())
    opened.start(os.makedev(0, 99))
    assert Mounts().look([mount])[0].problem == "other version"
    monkeypatch.setattr("speedwell.fuse_mount.monitor.VERSION", version)
    with pytest.raises(NotRunning, match=f"/m speaks version {version} of the protocol.*: {to_upgrade} "):
        next(follow(mount))


def test_a_mount_of_before_there_were_versions_is_heard(mount: Mount) -> None:
    assert "version" not in answer(1.0)
    monitor(AccessLog())
    assert Mounts().look([mount])[0].statistics == said(1.0)


def test_a_socket_that_another_user_put_there_is_not_believed(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor(AccessLog())
    monkeypatch.setattr(mount_monitor, "user_of", lambda connection: mount.owner + 1)
    assert Mounts().look([mount])[0].problem == "not yours"
    with pytest.raises(NotRunning, match="another user's mount"):
        next(follow(mount))


def test_nothing_is_sent_to_another_users_socket_behind_a_link_of_the_owners(mount: Mount) -> None:
    monitor(AccessLog())
    [source] = Mounts().look([replace(mount, options=("user_id=65534",))])
    assert source.problem == "not yours"


def test_a_mount_that_ends_late_leaves_the_socket_of_the_next_with_its_number(mount: Mount) -> None:
    first, second = monitor(AccessLog()), monitor(AccessLog())
    first.stop()
    assert Mounts().look([mount])[0].problem == ""
    second.stop()
    assert Mounts().look([mount])[0].problem == "no answer"


def test_a_mount_believes_root_and_its_owner_only(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor(AccessLog())
    monkeypatch.setattr("speedwell.fuse_mount.monitor.user_of", lambda connection: os.getuid() + 1)
    assert Mounts().look([mount])[0].problem == "no answer"


def test_a_directory_that_others_could_write_to_is_not_used(mount: Mount, tmp_path: Path) -> None:
    (tmp_path / "sockets").mkdir()
    (tmp_path / "sockets").chmod(0o777)
    with pytest.raises(PermissionError, match="somebody else's"):
        monitor(AccessLog())


def test_a_reader_of_the_log_gets_what_comes_and_leaves_nothing_behind(mount: Mount) -> None:
    log = AccessLog()
    monitor(log)
    records = follow(mount)

    def ask() -> None:
        while not log.readers:
            pass
        log.readers[0].put({"operation": "read"})

    asking = threading.Thread(target=ask)
    asking.start()
    assert next(records) == {"operation": "read"}
    asking.join()
    cast(Any, records).close()
    deadline = threading.Event()
    for _ in range(200):
        if not log.readers:
            break
        deadline.wait(0.05)
    assert log.readers == ()


def test_a_line_of_the_log_can_be_read_and_steers_no_terminal() -> None:
    record = {"time_ns": 1_500_000, "uid": 1, "gid": 2, "pid": 3, "operation": "lookup", "inode": 1,
              "name": "a b\n\x1b[2J", "result": "EN\x1bOENT", "seconds": 0.0015}
    line = line_of(record)
    assert line.partition(".")[2] == \
        r'001500 uid=1 gid=2 pid=3 lookup inode=1 name="a b\n\x1b[2J" EN\x1bOENT 1.500 ms'
    assert line_of({"lost": 1}) == "# 1 request missing here: they came faster than they were read"
