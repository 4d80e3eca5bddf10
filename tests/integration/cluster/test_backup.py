"""A backup goes through a tar archive into another installation."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

from speedwell.fs.client import Client
from speedwell.fs.client.names.trees import walk
from speedwell.fs.proto.speedwell_pb2 import DIRECTORY
from tests.integration.cluster.executable import Speedwell, error_line
from tests.integration.cluster.test_wrong_namespace import speedwell
from tests.local_cluster import LocalCluster

BIG = os.urandom(9 << 20)


def everything(client: Client, below: bytes = b"/") -> dict[bytes, object]:
    """What a restore is to bring back, by path."""
    inodes: dict[int, list[bytes]] = {}
    found: dict[bytes, object] = {}
    for path, each in walk(client, below):
        name = path[len(below):].lstrip(b"/")
        inodes.setdefault(each.inode, []).append(name)
        content = b""
        if each.file_id:
            with client.open_read(path) as reader:
                content = reader.read(0, reader.size)
        found[name] = (each.type, each.mode, each.uid, each.gid, each.mtime_ns, each.target, content,
                       client.metadata.posix.list_extended_attributes(path), sorted(inodes[each.inode]))
    return found


def fill(client: Client) -> None:
    client.mkdir(b"/d")
    client.mkdir(b"/d/locked")
    for path, content in ((b"/d/big", BIG), (b"/d/empty", b""), ("/d/\u00fc".encode() + b"\xff\n", b"odd"),
                          (b"/d/" + b"n" * 255, b"long"), (b"/d/locked/f", b"inside")):
        client.create(path)
        if content:
            client.append(path, content)
    client.metadata.posix.link(b"/d/big", b"/other")
    client.metadata.posix.make_symbolic_link(b"/link", b"../nowhere\xff")
    client.metadata.posix.set_extended_attribute(b"/d/big", b"user.binary", b"\0\n=\xff")
    client.metadata.posix.set_extended_attribute(b"/d", b"user.text", b"a=b")
    client.set_attributes(b"/d/empty", uid=12, gid=34, mode=0o4751, mtime_ns=1_000_000_001_123_456_789)
    client.set_attributes(b"/d/locked", mode=0o500, mtime_ns=-1_700_000_000)


def test_what_was_backed_up_is_restored_into_another_installation(tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    with LocalCluster(tmp_path / "a", dataservers=1) as cluster:
        fill(cluster.client())
        before = everything(cluster.client())
        done = speedwell(cluster, "backup", str(file))
        directories = sum(attributes.type == DIRECTORY for _, attributes in walk(cluster.client(), b"/"))
        told = f"{len(before) - directories} files and {directories} directories"
        assert done.returncode == 0 and f"{told} in {file}\n" in done.stderr, done.stderr
        assert file.stat().st_mode & 0o77 == 0, "it has everybody's contents"
        part = speedwell(cluster, "backup", str(tmp_path / "part.tar"), "--from", "/d/locked")
        assert part.returncode == 0 and "1 file and 0 directories in" in part.stderr, part.stderr
    with tarfile.open(file) as archive:     # as any other tool sees it
        assert archive.extractfile("d/big").read() == BIG   # type: ignore[union-attr]
        assert archive.getmember("d/locked").mtime == -1.7
        assert archive.getmember("d/big").islnk() != archive.getmember("other").islnk()
    listed = subprocess.run(["tar", "-tf", file], capture_output=True, text=True, check=True).stdout
    assert len(listed.splitlines()) == len(before)
    with LocalCluster(tmp_path / "b", dataservers=1) as cluster:
        client = cluster.client()
        for at in (100, 512, 1 << 20, file.stat().st_size - 10240):
            (tmp_path / "cut").write_bytes(file.read_bytes()[:at])
            cut = speedwell(cluster, "restore", str(tmp_path / "cut"), "--to", "/")
            assert cut.returncode == 1 and "archive" in cut.stderr, (at, cut.stderr)
            assert not [path for path, _ in walk(client, b"/") if b".restore." in path]
        for _ in range(2):      # what is there already is replaced
            done = speedwell(cluster, "restore", str(file))
            assert done.returncode == 0 and f"{told} restored" in done.stderr, done.stderr
            assert everything(cluster.client()) == before
        client.mkdir(b"/again")
        assert speedwell(cluster, "restore", str(tmp_path / "part.tar"), "--to", "/again").returncode == 0
        assert [*everything(cluster.client(), b"/again")] == [b"f"]


def test_an_archive_that_leads_out_of_its_directory_is_refused(tmp_path: Path) -> None:
    installation = Speedwell(tmp_path / "state")
    installation.ok("up", "--local", tmp_path / "c", "--dataservers", "1")
    try:
        installation.ok("mkdir", "/in")
        for number, name in enumerate(("../out", "a/../../out", "/../out")):
            with tarfile.open(tmp_path / f"{number}.tar", "w") as archive:
                archive.addfile(tarfile.TarInfo(name))
            assert ".." in error_line(installation.run("restore", tmp_path / f"{number}.tar", "--to", "/in"))
        for mtime in ("soon", "nan", "1e300"):
            with tarfile.open(tmp_path / "time.tar", "w") as archive:
                info = tarfile.TarInfo("f")
                info.pax_headers = {"mtime": mtime}
                archive.addfile(info)
            assert "f: its time of change is none" in error_line(
                installation.run("restore", tmp_path / "time.tar", "--to", "/in"))
        for place in (".", "/", tmp_path):
            assert b"is a directory" in installation.run("backup", place).stderr
        (tmp_path / "text").write_text("no archive")
        assert "no whole archive" in error_line(installation.run("restore", tmp_path / "text"))
        assert installation.ok("ls", "/") == "in/\n" and installation.ok("ls", "/in") == ""
    finally:
        installation.ok("down")
