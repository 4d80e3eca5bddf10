"""`speedwell bench` measures and leaves nothing; `speedwell warmup` brings every replica into memory."""

import ctypes
import json
import mmap
import os
import signal
from pathlib import Path

import pytest

from tests.integration.cluster.executable import Speedwell
from tests.waiting import wait_until

LARGE = 8 << 20


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bench")
    speedwell = Speedwell(directory / "state")
    speedwell.ok("up", "--local", directory / "c")
    yield speedwell, directory / "c"
    speedwell.ok("down")


def test_bench_measures_each_item_and_leaves_nothing(installation):
    speedwell, _ = installation
    speedwell.ok("mkdir", "/below")
    speedwell.ok("trash", "on", "/", "--keep", "1d")
    small = ("--big-size", "1MiB", "--small-size", "1KiB", "--small-files", "5")
    rows = json.loads(speedwell.ok("bench", "/below", *small, "--threads", "2", "--json"))
    assert [row["item"] for row in rows] == ["write big files", "read big files", "write small files",
                                             "read small files", "stat files", "remove files"]
    assert all(row["rate"] > 0 and row["seconds_each"] > 0 for row in rows)
    assert [row["unit"] for row in rows] == ["MiB/s"] * 2 + ["files/s"] * 4
    shown = speedwell.ok("bench", *small).splitlines()
    assert shown[0] == "1 thread, each with 1.0 MiB in one file and 5 files of 1.0 KiB"
    assert shown[1].split() == ["item", "rate", "unit", "time", "per", "file"] and len(shown) == 8
    assert speedwell.ok("find", "/").split() == ["/", "/below"]
    assert "speedwell-bench" not in speedwell.ok("trash", "list")
    speedwell.ok("trash", "off", "/")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_bench_that_is_interrupted_leaves_nothing(installation, number):
    speedwell, _ = installation
    running = speedwell.start("bench", "--big-size", "1MiB", "--small-files", "100000")
    wait_until(lambda: "/small-0-3" in speedwell.ok("find", "/"), 60, "the benchmark makes no files")
    running.send_signal(number)
    assert running.wait(60) == (130 if number == signal.SIGINT else 128 + number)
    assert "speedwell-bench" not in speedwell.ok("find", "/")


@pytest.mark.parametrize("arguments", [("/missing",), ("/", "--big-size", "0"), ("/", "--threads", "0")])
def test_bench_refuses_nonsense_in_one_line(installation, arguments):
    speedwell, _ = installation
    refused = speedwell.run("bench", *arguments)
    assert refused.returncode in (1, 2) and len(refused.stderr.splitlines()) <= 2


def test_every_replica_is_in_memory_after_warmup(installation, tmp_path):
    speedwell, directory = installation
    source = tmp_path / "large"
    source.write_bytes(os.urandom(LARGE))
    speedwell.ok("mkdir", "/warm")
    speedwell.ok("put", source, "/warm/large")
    stored = [path for path in (directory / "dataservers").rglob("*") if path.is_file()
              and path.stat().st_size >= LARGE]
    assert len(stored) == 3
    for path in stored:
        push_out(path)
    assert sum(map(resident_part, stored)) < 0.5, "the test could not push the replicas out of memory"
    shown = speedwell.ok("warmup", "/warm")
    assert shown == "read 1 file, 24.0 MiB with all replicas, on 3 dataservers\n"
    assert [resident_part(path) for path in stored] == [1.0, 1.0, 1.0]


def test_warmup_tells_what_it_finds_damaged(installation, tmp_path):
    speedwell, directory = installation
    source = tmp_path / "damaged"
    source.write_bytes(os.urandom(LARGE + 4096))
    speedwell.ok("put", source, "/damaged")
    stored = next(path for path in (directory / "dataservers" / "d1").rglob("*")
                  if path.is_file() and path.stat().st_size == LARGE + 4096)
    with stored.open("r+b") as file:
        file.seek(12345)
        byte = file.read(1)[0]
        file.seek(12345)
        file.write(bytes([byte ^ 1]))
    found = speedwell.run("warmup", "/damaged")
    assert found.returncode == 1 and b"/damaged on d1: block" in found.stderr
    assert speedwell.run("warmup", "/missing").returncode == 1


def push_out(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def resident_part(path: Path) -> float:
    """How much of a file is in the page cache, from 0 to 1."""
    libc = ctypes.CDLL(None, use_errno=True)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, protection) as mapped:
        place = (ctypes.c_char * len(mapped)).from_buffer(mapped)
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        done = libc.mincore(ctypes.c_void_p(ctypes.addressof(place)), ctypes.c_size_t(len(mapped)), pages)
        del place
        assert done == 0, os.strerror(ctypes.get_errno())
        return sum(page & 1 for page in pages) / len(pages)
