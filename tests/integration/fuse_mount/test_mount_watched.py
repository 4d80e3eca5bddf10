"""`speedwell top` and `speedwell accesslog` of real mounts."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster
from tests.terminal import Terminal, plain
from tests.waiting import wait_until

SPEEDWELL = str(Path(sys.executable).parent / "speedwell")
DEADLINE_SECONDS = 30.0


@contextmanager
def busy(directory: Path) -> Iterator[None]:
    """A program that asks for what no cache has."""
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(0.002):
            os.listxattr(directory)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        ended.set()
        asking.join()


@contextmanager
def following(mountpoint: Path, *options: str) -> Iterator[tuple["subprocess.Popen[str]", list[str]]]:
    """A reader of the log that has begun, and the lines that it has printed."""
    reader = subprocess.Popen([SPEEDWELL, "accesslog", str(mountpoint), *options], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
    lines: list[str] = []
    assert reader.stdout is not None
    output = reader.stdout
    taking = threading.Thread(target=lambda: lines.extend(iter(output.readline, "")))
    taking.start()

    def has_begun() -> bool:
        os.listxattr(mountpoint)
        return bool(lines)

    try:
        wait_until(has_begun, DEADLINE_SECONDS, "the reader gets nothing")
        yield reader, lines
    finally:
        reader.kill()
        reader.wait()
        taking.join()


def top(*options: str) -> dict[str, list[str]]:
    """The cells after the mount point of each row."""
    told = subprocess.run([SPEEDWELL, "top", "--all", *options], capture_output=True, text=True,
                          timeout=60, check=True).stdout.splitlines()
    assert told[0].split() == ["mount", "ops/s", "mean", "ms", "p99", "ms", "read/s", "written/s", "err/s", "open"]
    return {row[0]: row[1:] for row in (re.split(" {2,}", line) for line in told[1:])}


def test_top_shows_what_each_mount_does(two_mounts: tuple[Mounted, Mounted], here: Path) -> None:
    (here / "open").write_bytes(b"here")
    with (here / "open").open(), busy(here):
        rows = top()
    mine, other = rows[str(two_mounts[0].path)], rows[str(two_mounts[1].path)]
    assert int(mine[0]) > 20 and int(mine[-1]) == 1
    assert float(mine[1]) > 0 and int(other[0]) < int(mine[0])


def test_a_stopped_mount_is_shown_and_holds_nobody_up(cluster: LocalCluster, tmp_path: Path) -> None:
    mounted = Mounted(tmp_path / "m", cluster.nameserver.address)
    try:
        mounted.process.send_signal(signal.SIGSTOP)
        assert top("--sort", "ops")[str(mounted.path)][0] == "no answer"
        refused = subprocess.run([SPEEDWELL, "accesslog", str(mounted.path)], capture_output=True, text=True,
                                 timeout=60, check=False)
        assert (refused.returncode, refused.stderr) == (
            1, f"speedwell: the mount at {mounted.path} does not answer\n")
        mounted.process.send_signal(signal.SIGCONT)
        assert top()[str(mounted.path)][0].isdigit()
        assert mounted.stop() == 0
    finally:
        mounted.process.send_signal(signal.SIGCONT)
        mounted.clean_up()


def test_on_a_terminal_top_goes_on_until_ctrl_c(two_mounts: tuple[Mounted, Mounted]) -> None:
    terminal = Terminal([SPEEDWELL, "top", "--all", "--interval", "0.1"], 100)
    text = ""
    while plain(text).count("ops/s") < 3:
        piece = terminal.read()
        assert piece, text
        text += piece
    os.kill(terminal.process.pid, signal.SIGINT)
    assert terminal.close() == 0


def test_the_log_has_each_request_with_who_what_and_how(two_mounts: tuple[Mounted, Mounted], here: Path) -> None:
    with following(two_mounts[0].path, "--json") as (_, lines):
        (here / "new name").write_bytes(b"four")
        assert not (here / "missing").exists()
        (here / "new name").unlink()
        wait_until(lambda: any('"unlink"' in line for line in lines), DEADLINE_SECONDS, lambda: "".join(lines))
        records = [json.loads(line) for line in lines]
    by_operation = {record["operation"]: record for record in records if record.get("name") != "missing"}
    made, written = by_operation["create"], by_operation["write"]
    assert (made["inode"], made["name"], made["result"]) == (here.stat().st_ino, "new name", "OK")
    assert (written["inode"], written["offset"], written["size"], written["bytes"]) == (made["found"], 0, 4, 4)
    assert {made["uid"], made["gid"]} == {os.geteuid()} and made["pid"] in (os.getpid(), threading.get_native_id())
    [missing] = [record for record in records if record.get("name") == "missing"]
    assert missing["result"] == "ENOENT" and "found" not in missing
    assert all(0 < record["seconds"] < DEADLINE_SECONDS for record in records)


def test_ctrl_c_ends_one_reader_and_leaves_the_others(two_mounts: tuple[Mounted, Mounted], here: Path) -> None:
    with following(two_mounts[0].path) as (first, _), following(two_mounts[0].path) as (_, lines):
        first.send_signal(signal.SIGINT)
        assert first.wait(DEADLINE_SECONDS) == 0
        assert first.stderr is not None and first.stderr.read() == ""
        before = len(lines)
        (here / "after").mkdir()
        wait_until(lambda: any('name="after"' in line for line in lines[before:]), DEADLINE_SECONDS, "nothing comes")


def test_a_reader_that_stops_reading_slows_nobody_and_is_told_what_it_missed(two_mounts: tuple[Mounted, Mounted],
                                                                            here: Path) -> None:
    missing = str(here / "missing")
    with following(two_mounts[0].path) as (reader, lines):
        reader.send_signal(signal.SIGSTOP)
        for _ in range(25_000):
            assert not os.path.exists(missing)  # noqa: PTH110 - each is a look-up, and this the fastest way to it
        reader.send_signal(signal.SIGCONT)

        def goes_on() -> bool:
            os.listxattr(here)
            return any(line.startswith("# ") for line in lines)

        wait_until(goes_on, DEADLINE_SECONDS, "nobody says what is missing")
        [told] = [line for line in lines if line.startswith("# ")]
    shown = sum(missing.rpartition("/")[2] in line for line in lines)
    assert shown < 25_000 and int(told.split()[1]) >= 25_000 - shown


def test_the_end_of_a_mount_ends_its_readers_who_do_not_hold_it_up(cluster: LocalCluster, tmp_path: Path) -> None:
    mounted = Mounted(tmp_path / "m", cluster.nameserver.address)
    try:
        with following(mounted.path) as (reader, _):
            assert mounted.stop() == 0
            assert reader.wait(DEADLINE_SECONDS) == 1
            assert reader.stderr is not None
            assert reader.stderr.read() == f"speedwell: the mount at {mounted.path} ended\n"
    finally:
        mounted.clean_up()


@pytest.mark.parametrize("path", ["/", "/nowhere"])
def test_what_is_no_mount_of_speedwell_has_no_log(path: str) -> None:
    refused = subprocess.run([SPEEDWELL, "accesslog", path], capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, refused.stderr) == (1, f"speedwell: {path} is not a mount point of Speedwell\n")
