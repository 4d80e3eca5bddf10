"""The real libfuse, with a kernel that offers less than this one, and without some of its functions."""

import ctypes
import ctypes.util
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

HEADER = "=IIQQIIII"    # linux/fuse.h, struct fuse_in_header
OUT_HEADER_BYTES = 16
INIT = 26
POSIX_LOCKS, FLOCK_LOCKS, READDIRPLUS = 1 << 1, 1 << 10, 1 << 13
PROGRAM = """
import logging, sys

from speedwell.fuse_mount import binding
from speedwell.fuse_mount.errors import MountError
from speedwell.fuse_mount.requests import Requests

class Operations:
    def init(self):
        print("served", flush=True)

    def destroy(self):
        return True

logging.basicConfig(stream=sys.stdout, format="%(message)s")
try:
    session = Requests(binding.load_library(), binding.tune)
    session.serve(Operations(), sys.argv[1], "fsname=x", 2)
except MountError as error:
    print(error)
"""


def said_to_kernel(minor: int, flags: int) -> tuple[str, int]:
    """What a mount says of a kernel with FUSE 7.`minor`, and the length of its answer to it."""
    kernel, mount = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with kernel, mount:
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, f"/dev/fd/{mount.fileno()}"], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[mount.fileno()])
        mount.close()
        body = struct.pack("=IIII", 7, minor, 1 << 17, flags)
        kernel.send(struct.pack(HEADER, struct.calcsize(HEADER) + len(body), INIT, 1, 0, 0, 0, 0, 0) + body)
        kernel.settimeout(60)
        answer = kernel.recv(4096)
        kernel.close()
        return process.communicate(timeout=60)[0], len(answer) - OUT_HEADER_BYTES


@pytest.mark.parametrize(("minor", "flags", "missing"), [
    (8, POSIX_LOCKS, "flock"), (16, POSIX_LOCKS, "flock"), (31, FLOCK_LOCKS, "fcntl"), (31, 0, "fcntl and flock")])
def test_a_kernel_that_keeps_locks_to_itself_is_refused(minor: int, flags: int, missing: str) -> None:
    said, _ = said_to_kernel(minor, flags)
    assert said == (f"the kernel is too old: its FUSE 7.{minor} keeps locks of {missing} to itself, and they are to "
                    "hold between mounts; Linux 3.1 is the first that hands them on\n")


def test_an_older_kernel_gets_what_it_can_and_the_log_says_what_is_slower() -> None:
    said, answer_bytes = said_to_kernel(18, POSIX_LOCKS | FLOCK_LOCKS)
    assert said == "the kernel's FUSE 7.18 lists names without attributes: `ls -l` asks for each file\nserved\n"
    assert answer_bytes == 24   # as it was before FUSE 7.23
    assert said_to_kernel(31, POSIX_LOCKS | FLOCK_LOCKS | READDIRPLUS)[0] == "served\n"


def said_with_library(path: Path) -> str:
    done = subprocess.run([sys.executable, "-c", PROGRAM, "/nowhere"], capture_output=True, text=True, timeout=60,
                          check=False, env={**os.environ, "FUSE_LIBRARY_PATH": str(path)})
    assert done.returncode == 0, done.stderr
    return done.stdout


def library_without(directory: Path, *names: str) -> Path:
    """This machine's libfuse, in which functions have other names. They have the same sum in its table of names
    (33 times the letters before, plus the letter), so that libfuse's own calls find them."""
    found = ctypes.util.find_library("fuse3")
    if found is None:
        pytest.skip("libfuse 3 is not installed")
    ctypes.CDLL(found)
    [path] = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libfuse3." in line}
    code = Path(path).read_bytes()
    for name in map(str.encode, names):
        assert code.count(b"\0%b\0" % name) == 1
        code = code.replace(b"\0%b\0" % name, b"\0%b\0" % name.replace(b"fuse", b"gTse"))
    (directory / "libfuse3.so").write_bytes(code)
    return directory / "libfuse3.so"


def test_a_libfuse_without_a_function_is_refused_with_its_name(tmp_path: Path) -> None:
    library = library_without(tmp_path, "fuse_reply_lock", "fuse_req_getgroups")
    assert said_with_library(library) == (
        f"this libfuse ({library}) has no fuse_reply_lock, fuse_req_getgroups: install libfuse 3.2 or newer "
        "(Debian package libfuse3-3)\n")
    library = library_without(tmp_path, "fuse_loop_cfg_create", "fuse_session_loop_mt_32")
    assert "has no fuse_loop_cfg_create or fuse_session_loop_mt_32: install" in said_with_library(library)


def test_an_older_libfuse_serves_with_its_older_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = library_without(tmp_path, "fuse_loop_cfg_create", "fuse_reply_lseek")
    monkeypatch.setenv("FUSE_LIBRARY_PATH", str(library))
    assert said_to_kernel(31, POSIX_LOCKS | FLOCK_LOCKS | READDIRPLUS)[0] == "served\n"


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "libfuse3.so").write_bytes(b"nothing")
    assert "no FUSE library can be loaded; install the Debian package fuse3" in said_with_library(
        tmp_path / "libfuse3.so")
