"""The namespace goes through a file into a new nameserver, and the bytes are found where they are."""

import json
import os
import select
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

from tests.integration.cluster.executable import Speedwell, error_line
from tests.integration.cluster.test_wrong_namespace import DATA, all_there, fill, speedwell, start, swap
from tests.waiting import wait_until


def test_files_are_read_again_through_a_namespace_that_came_from_a_dump(tmp_path: Path) -> None:
    file = tmp_path / "names.json"
    with start(tmp_path, "--recovery-grace", "60") as cluster:
        fill(cluster.client(), DATA)
        for arguments in (("mkdir", "/d"), ("chmod", "700", "/d"), ("quota", "set", "/d", "--files", "9"),
                          ("put", "--replicas", "d1", str(Path(__file__)), "/d/this")):
            assert speedwell(cluster, *arguments).returncode == 0
        dumped = speedwell(cluster, "dump", str(file))
        assert dumped.returncode == 0 and f"records in {file}" in dumped.stderr
        before = speedwell(cluster, "ls", "-R", "--json", "/").stdout
        refused = speedwell(cluster, "load", str(file))
        assert refused.returncode == 1 and "only into a new installation" in refused.stderr
        grown = next(iter(DATA))
        assert cluster.client().append(grown, b" and more") is not None
        swap(cluster, None, "--new")
        loaded = speedwell(cluster, "load", str(file))
        assert loaded.returncode == 0, loaded.stderr
        assert "`speedwell node adopt d1`" in loaded.stdout
        for name in ("d0", "d1", "d2"):
            assert speedwell(cluster, "node", "adopt", name).returncode == 0
        cluster.wait_alive({"d0", "d1", "d2"})
        client = cluster.client()
        wait_until(lambda: client.lookup(grown, fresh=True).size == len(DATA[grown]) + 9, 30,
                   "what was appended after the dump is not found")
        assert all_there(client, {**DATA, grown: DATA[grown] + b" and more"})
        assert named(speedwell(cluster, "ls", "-R", "--json", "/").stdout, grown) == named(before, grown)
        assert speedwell(cluster, "quota", "show", "/d").stdout.count("/d") == 1
        wait_until(lambda: speedwell(cluster, "fsck").returncode == 0, 30, "it is not clean")
        assert speedwell(cluster, "put", str(Path(__file__)), "/new").returncode == 0
        assert speedwell(cluster, "cat", "/new").stdout == Path(__file__).read_text()


def test_a_dump_is_whole_or_not_there(tmp_path: Path) -> None:
    installation = Speedwell(tmp_path / "state")
    installation.ok("up", "--local", tmp_path / "c", "--dataservers", "1")
    try:
        installation.ok("mkdir", "/a")
        file = tmp_path / "names"
        file.write_text("what was there before")
        refused = error_line(installation.run("dump", tmp_path / "missing" / "names"))
        assert refused == f"speedwell: {tmp_path / 'missing'}: No such file or directory"
        assert file.read_text() == "what was there before"
        shown = installation.run("dump", "-")
        assert shown.returncode == 0 and len(shown.stdout.splitlines()) == 6
        installation.ok("dump", file)
        assert json.loads(file.read_text().splitlines()[0])["format"] == "speedwell namespace"
        assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~_umask()
        reading, writing = os.pipe()
        stopped = installation.start("load", "-", stdin=reading)
        os.write(writing, file.read_bytes().splitlines(keepends=True)[0])
        wait_until(lambda: not select.select([reading], [], [], 0)[0], 30, "the command reads nothing")
        stopped.send_signal(signal.SIGINT)
        assert stopped.wait(60) == 130
        os.close(writing)
        os.close(reading)
        other = Speedwell(tmp_path / "state2")
        other.ok("up", "--local", tmp_path / "c2", "--dataservers", "1")
        try:
            cut = file.read_bytes()[:-10]
            assert "line 6" in error_line(other.run("load", "-", stdin=cut))
            other_kind = b"\n".join([file.read_bytes().splitlines()[0], b'{"nothing":1}', b""])
            assert "line 2: this is no record of a dump" in error_line(other.run("load", "-", stdin=other_kind))
            assert other.ok("ls", "/") == ""
            assert "1 files" not in other.ok("load", file)
            assert other.ok("ls", "/") == "a/\n"
        finally:
            other.ok("down")
    finally:
        installation.ok("down")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def named(listing: str, grown: str) -> list[dict[str, Any]]:
    """What is listed, but for the length and times of the file that has grown, and who is primary or alive now."""
    entries: list[dict[str, Any]] = json.loads(listing)
    for entry in entries:
        entry["replicas"] = sorted(replica["dataserver_id"] for replica in entry.get("replicas", ()))
        if f"/{entry['name']}" == grown:
            for name in ("size", "atime_ns", "mtime_ns", "ctime_ns"):
                del entry[name]
    return entries


def _umask() -> int:
    return int(subprocess.run(["sh", "-c", "umask"], capture_output=True, text=True, check=True).stdout, 8)
