"""The file commands against a running installation on loopback, as a user types them."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.cluster.executable import Speedwell, error_line
from tests.waiting import wait_until

CHUNK_BYTES = 64 << 10


@pytest.fixture(scope="module")
def speedwell(tmp_path_factory):
    directory = tmp_path_factory.mktemp("commands")
    speedwell = Speedwell(directory / "state")
    speedwell.ok("up", "--local", directory / "c", "--chunk-size", str(CHUNK_BYTES))
    yield speedwell
    speedwell.ok("down")


@pytest.fixture
def room(speedwell, request):
    """An empty directory of the filesystem for one test."""
    path = f"/{request.node.name[:60]}"
    speedwell.ok("mkdir", path)
    return path


def test_a_file_that_spans_chunks_comes_back_byte_for_byte(speedwell, room, tmp_path):
    content = os.urandom(5 * CHUNK_BYTES + 17)
    (tmp_path / "file").write_bytes(content)
    speedwell.ok("put", tmp_path / "file", f"{room}/stored")
    speedwell.ok("get", f"{room}/stored", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content
    assert speedwell.ok("cat", f"{room}/stored", binary=True) == content
    assert speedwell.ok("get", f"{room}/stored", "-", binary=True) == content


def test_put_into_a_directory_keeps_name_and_mode_and_get_gives_them_back(speedwell, room, tmp_path):
    (tmp_path / "script").write_bytes(b"#!/bin/sh\n")
    (tmp_path / "script").chmod(0o755)
    speedwell.ok("put", tmp_path / "script", room)
    (tmp_path / "out").mkdir()
    speedwell.ok("get", f"{room}/script", tmp_path / "out")
    assert (tmp_path / "out" / "script").stat().st_mode & 0o777 == 0o755


def test_put_replaces_a_file_and_leaves_no_other_name(speedwell, room, tmp_path):
    (tmp_path / "file").write_bytes(b"first")
    speedwell.ok("put", tmp_path / "file", f"{room}/x")
    (tmp_path / "file").write_bytes(b"second version")
    speedwell.ok("put", tmp_path / "file", f"{room}/x")
    assert speedwell.ok("cat", f"{room}/x") == "second version"
    assert speedwell.ok("ls", room) == "x\n"


def test_standard_input_can_be_stored_and_appended(speedwell, room):
    speedwell.ok("put", "-", f"{room}/x", stdin=b"one\n")
    speedwell.ok("append", f"{room}/x", "-", stdin=b"two\n")
    speedwell.ok("append", f"{room}/x", stdin=b"three\n")
    assert speedwell.ok("cat", f"{room}/x") == "one\ntwo\nthree\n"


def test_append_makes_the_file_and_takes_a_source_larger_than_a_record(speedwell, room, tmp_path):
    content = os.urandom((5 << 20) + 3)
    (tmp_path / "log").write_bytes(content)
    speedwell.ok("append", f"{room}/log", tmp_path / "log")
    speedwell.ok("append", f"{room}/log", tmp_path / "log")
    assert speedwell.ok("cat", f"{room}/log", binary=True) == content * 2


def test_records_of_concurrent_appenders_are_never_torn(speedwell, room):
    lines = [bytes([ord("a") + number]) * 40_000 + b"\n" for number in range(4)]
    appenders = [speedwell.start("append", f"{room}/shared", stdin=line) for line in lines]
    assert [appender.wait(60) for appender in appenders] == [0] * 4
    assert sorted(speedwell.ok("cat", f"{room}/shared", binary=True).splitlines(keepends=True)) == lines


def test_a_tree_goes_in_and_comes_back_the_same(speedwell, room, tmp_path):
    tree = tmp_path / "tree"
    (tree / "a" / "empty").mkdir(parents=True)
    (tree / "a" / "file").write_bytes(b"x" * 100_000)
    (tree / os.fsdecode(b"caf\xe9")).write_bytes(b"latin")
    (tree / "none").write_bytes(b"")
    (tree / "link").symlink_to("none")
    (tree / "broken").symlink_to("nowhere")
    (tree / "up").symlink_to("a/..")
    os.mkfifo(tree / "pipe")
    result = speedwell.run("put", "-r", tree, room)
    assert result.returncode == 0
    assert error_line(result).endswith("pipe: not a regular file or directory, not copied")
    speedwell.ok("put", "-r", tree / "a", f"{room}/tree")   # again, over what is there
    for _ in range(2):
        speedwell.ok("get", "-r", f"{room}/tree", tmp_path)
    speedwell.ok("get", "-r", f"{room}/tree", tmp_path / "back")
    (tree / "pipe").unlink()
    assert subprocess.run(["diff", "-r", "--no-dereference", tree, tmp_path / "back"], check=False).returncode == 0
    assert (tmp_path / "back" / "a" / "empty").is_dir()


def test_get_of_a_tree_into_an_existing_directory_makes_one_of_its_name(speedwell, room, tmp_path):
    speedwell.ok("put", "-", f"{room}/x", stdin=b"1")
    speedwell.ok("get", "-r", room, tmp_path)
    assert (tmp_path / room[1:] / "x").read_bytes() == b"1"


def test_several_sources_go_into_a_directory_and_nowhere_else(speedwell, room, tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(name)
    speedwell.ok("put", tmp_path / "a", tmp_path / "b", room)
    assert speedwell.ok("ls", room) == "a\nb\n"
    refused = speedwell.run("put", tmp_path / "a", tmp_path / "b", f"{room}/a")
    assert refused.returncode == 1
    assert "is not a directory" in error_line(refused)


def test_ls_shows_mode_replicas_owner_size_and_marks_directories(speedwell, room):
    speedwell.ok("mkdir", f"{room}/sub")
    speedwell.ok("put", "-", f"{room}/x", stdin=b"12345")
    assert speedwell.ok("ls", room) == "sub/\nx\n"
    sub, file = (line.split() for line in speedwell.ok("ls", "-l", room).splitlines())
    assert (sub[0], sub[1], sub[-1]) == ("drwxr-xr-x", "-", "sub/")
    assert (file[0], file[1], file[4], file[-1]) == ("-rw-r--r--", "3", "5", "x")
    [entry] = [entry for entry in json.loads(speedwell.ok("ls", "--json", room)) if entry["name"] == "x"]
    assert (entry["size"], entry["type"], entry["mode"], len(entry["replicas"])) == (5, "file", "0644", 3)
    assert speedwell.ok("ls", f"{room}/x") == f"{room}/x\n"


def test_stat_shows_the_replicas_with_their_racks_and_that_they_live(speedwell, room):
    speedwell.ok("put", "-", f"{room}/x", stdin=b"x" * (CHUNK_BYTES + 1))
    shown = speedwell.ok("stat", f"{room}/x")
    assert f"{CHUNK_BYTES + 1} bytes (64.0 KiB)" in shown
    assert "2 of up to 64.0 KiB" in shown
    assert shown.count(": alive") == 3
    assert {f"rack r{number}" in shown for number in range(3)} == {True}
    [document] = json.loads(speedwell.ok("stat", "--json", f"{room}/x"))
    assert {replica["rack"] for replica in document["replicas"]} == {"r0", "r1", "r2"}


def test_put_stores_on_the_dataservers_that_are_named(speedwell, room):
    speedwell.ok("put", "--replicas", "d2,d0", "-", f"{room}/x", stdin=b"here")
    [document] = json.loads(speedwell.ok("stat", "--json", f"{room}/x"))
    assert [replica["dataserver_id"] for replica in document["replicas"]] == ["d2", "d0"]
    assert speedwell.ok("cat", f"{room}/x") == "here"
    refused = speedwell.run("put", "--replicas", "d2,d7", "-", f"{room}/y", stdin=b"nowhere")
    assert "no dataserver is called 'd7'" in error_line(refused)
    assert speedwell.ok("ls", room) == "x\n"


def test_mv_renames_moves_into_directories_and_replaces_unless_told_not_to(speedwell, room):
    speedwell.ok("put", "-", f"{room}/a", stdin=b"a")
    speedwell.ok("put", "-", f"{room}/b", stdin=b"b")
    speedwell.ok("mkdir", f"{room}/d")
    refused = speedwell.run("mv", "-n", f"{room}/a", f"{room}/b")
    assert refused.returncode == 1
    speedwell.ok("mv", f"{room}/a", f"{room}/b")
    assert speedwell.ok("cat", f"{room}/b") == "a"
    speedwell.ok("mv", f"{room}/b", f"{room}/d")
    assert speedwell.ok("cat", f"{room}/d/b") == "a"
    speedwell.ok("mv", f"{room}/d", f"{room}/e")
    assert speedwell.ok("ls", room) == "e/\n"


def test_rm_removes_files_and_needs_r_for_directories(speedwell, room):
    speedwell.ok("mkdir", "-p", f"{room}/d/e/f")
    speedwell.ok("put", "-", f"{room}/d/e/x", stdin=b"1")
    refused = speedwell.run("rm", f"{room}/d")
    assert refused.returncode == 1
    assert "-r removes directories" in error_line(refused)
    speedwell.ok("rm", f"{room}/d/e/x")
    speedwell.ok("rm", "-r", f"{room}/d")
    assert speedwell.ok("ls", room) == ""
    assert speedwell.run("rm", f"{room}/d").returncode == 1
    speedwell.ok("rm", "-f", f"{room}/d")


def test_the_root_is_never_removed(speedwell, room):
    refused = speedwell.run("rm", "-r", "/")
    assert refused.returncode == 1
    assert "refusing to remove /" in error_line(refused)
    assert f"{room[1:]}/" in speedwell.ok("ls")


@pytest.mark.parametrize("arguments", [
    ("cat", "relative"), ("cat", "/../etc/passwd"), ("mkdir", "/" + "n" * 300), ("mkdir", "/a/./b"),
    ("cat", "/no/such"), ("mv", "/no/such", "/x"), ("mkdir", "/no/such/parent"), ("get", "/no/such", "x"),
    ("get", "/", "x"), ("cat", "/"), ("put", "/etc", "/x"), ("put", "/etc/hostname", "/no/such/x"),
    ("get", "-r", "/", "-"), ("append", "/"), ("put", "/etc/hostname", "/newdir/"), ("put", "-", "/"),
    ("rm", "/no/such"), ("stat", "/no/such"), ("ls", "/no/such"), ("append", "/x", "/no/such/source")])
def test_what_cannot_be_done_is_refused_in_one_line(speedwell, arguments, tmp_path):
    result = speedwell.run(*arguments, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stdout == b""
    assert "unexpected" not in error_line(result)
    assert list(tmp_path.iterdir()) == []


def test_get_over_a_directory_or_into_a_missing_one_is_refused(speedwell, room, tmp_path):
    speedwell.ok("put", "-", f"{room}/x", stdin=b"1")
    (tmp_path / "d" / "x").mkdir(parents=True)
    assert "is a directory" in error_line(speedwell.run("get", f"{room}/x", tmp_path / "d"))
    assert f"{tmp_path}/none: No such file" in error_line(speedwell.run("get", f"{room}/x", tmp_path / "none" / "x"))
    assert "is not a directory" in error_line(speedwell.run("get", f"{room}/x", f"{tmp_path}/new/"))
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_get_writes_to_a_device_as_it_is(speedwell, room):
    speedwell.ok("put", "-", f"{room}/x", stdin=b"1")
    speedwell.ok("get", f"{room}/x", "/dev/null")
    assert Path("/dev/null").is_char_device()


def test_an_interrupted_put_leaves_no_name_and_says_130(speedwell, room):
    process = speedwell.start("put", "-", f"{room}/x", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"x" * (1 << 20))
    process.stdin.flush()
    wait_until(lambda: speedwell.ok("ls", room) != "", 10, "the put has begun under a temporary name")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == b"speedwell: interrupted\n"
    assert speedwell.ok("ls", room) == ""


def test_an_interrupted_get_leaves_nothing_at_the_destination(speedwell, room, tmp_path):
    speedwell.ok("put", "-", f"{room}/x", stdin=os.urandom(32 << 20))
    (tmp_path / "out").mkdir()
    process = speedwell.start("get", f"{room}/x", tmp_path / "out" / "x")
    wait_until(lambda: any((tmp_path / "out").iterdir()) or process.poll() is not None, 10, "the get has begun")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    left = [path.name for path in (tmp_path / "out").iterdir()]
    assert left in ([], ["x"])
    if left:  # it was quicker than the signal: then it is whole
        assert (tmp_path / "out" / "x").stat().st_size == 32 << 20
    else:
        assert process.returncode == 128 + signal.SIGTERM


def test_a_reader_that_goes_away_is_no_error_message(speedwell, room):
    speedwell.ok("put", "-", f"{room}/x", stdin=b"line\n" * 500_000)
    result = speedwell.shell(f"speedwell cat {room}/x | head -n 1")
    assert (result.stdout, result.stderr) == (b"line\n", b"")


def test_status_counts_files_and_dataservers_and_measures_processes(speedwell, room):
    before = json.loads(speedwell.ok("status", "--json"))["statistics"]
    speedwell.ok("put", "-", f"{room}/x", stdin=b"1")
    after = json.loads(speedwell.ok("status", "--json"))
    assert after["statistics"]["files"] == before["files"] + 1
    assert [server["alive"] for server in after["statistics"]["dataservers"]] == [True] * 3
    assert [process["name"] for process in after["processes"]] == ["nameserver", "d0", "d1", "d2", "supervisor"]
    assert all(5 << 20 < process["memory_bytes"] < 120 << 20 for process in after["processes"])
    assert after["problems"] == []
    shown = speedwell.ok("status")
    assert "dataservers: 3 alive, 0 dead" in shown


def test_a_quota_is_set_shown_enforced_and_cleared(speedwell, room):
    speedwell.ok("quota", "set", room, "--bytes", "1MiB", "--files", "10")
    speedwell.ok("put", "-", f"{room}/a", stdin=bytes(600_000))
    refused = speedwell.run("put", "-", f"{room}/b", stdin=bytes(600_000))
    assert refused.returncode == 1
    assert error_line(refused).startswith(f"speedwell: {room}/b: ")
    assert f"KiB more are too many for the quota on {room}, which has room for " in error_line(refused)
    shown = json.loads(speedwell.ok("quota", "show", room, "--json"))
    assert shown == [{"path": room, "used_bytes": 600_000, "used_files": 2, "max_bytes": 1 << 20,
                      "max_files": 10, "counting": False}]
    assert room in speedwell.ok("quota", "list")
    assert speedwell.run("quota", "set", room).returncode == 2
    speedwell.ok("quota", "clear", room)
    assert f"no quota holds in {room}" in speedwell.ok("quota", "show", room)
    speedwell.ok("put", "-", f"{room}/b", stdin=bytes(600_000))


def test_what_was_removed_is_listed_restored_and_emptied(speedwell, room, tmp_path):
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "file").write_bytes(b"precious")
    (tmp_path / "tree" / "sub" / "other").write_bytes(b"too")
    speedwell.ok("put", "-r", tmp_path / "tree", room)
    speedwell.ok("trash", "on", room, "--keep", "1d")
    speedwell.ok("rm", "-r", f"{room}/tree")
    assert speedwell.ok("ls", room) == ""
    shown = json.loads(speedwell.ok("trash", "list", room, "--json"))
    assert shown["policies"] == [{"path": room, "keep_seconds": 86400}]
    assert sorted(entry["path"] for entry in shown["entries"]) == [
        f"{room}/tree{name}" for name in ("", "/file", "/sub", "/sub/other")]
    (row,) = (line for line in speedwell.ok("trash", "list").splitlines() if f"{room}/tree" in line)
    assert row.split()[-4:] == ["11", "B", "3", f"{room}/tree"], row
    speedwell.ok("trash", "restore", f"{room}/tree/file")
    assert "2 restored" in speedwell.ok("trash", "restore", f"{room}/tree")
    assert speedwell.ok("cat", f"{room}/tree/file", f"{room}/tree/sub/other") == "precioustoo"

    speedwell.ok("rm", f"{room}/tree/file")
    speedwell.ok("trash", "restore", f"{room}/tree/file", f"{room}/new/place")
    assert speedwell.ok("cat", f"{room}/new/place") == "precious"
    speedwell.ok("rm", f"{room}/new/place")
    assert "1 gone for good" in speedwell.ok("trash", "empty", room)
    assert "has nothing that was removed at" in error_line(speedwell.run("trash", "restore", f"{room}/new/place"))
    speedwell.ok("trash", "off", room)
    speedwell.ok("rm", "-r", f"{room}/tree")
    assert json.loads(speedwell.ok("trash", "list", "--json")) == {"policies": [], "entries": []}
    assert speedwell.run("trash", "on", "--keep", "soon").returncode == 2


def test_links_are_followed_or_kept_as_by_the_commands_of_the_machine(speedwell, room, tmp_path):
    tree = tmp_path / "tree"
    (tree / "d" / "e").mkdir(parents=True)
    (tree / "d" / "file").write_text("content")
    (tree / "to-file").symlink_to("d/file")
    (tree / "to-d").symlink_to(f"{room}/tree/d")
    (tree / "around").symlink_to("around")
    (tree / "nowhere").symlink_to("d/new")
    speedwell.ok("put", "-r", tree, room)
    top = f"{room}/tree"
    assert speedwell.ok("cat", f"{top}/to-file", f"{top}/to-d/file") == "contentcontent"
    assert speedwell.ok("ls", f"{top}/to-d") == "e/\nfile\n"
    shown = speedwell.ok("ls", "-l", f"{top}/to-d", f"{top}/nowhere")
    assert "lrwxrwxrwx" in shown and f"-> {room}/tree/d\n" in shown and "-> d/new\n" in shown
    assert json.loads(speedwell.ok("stat", "--json", f"{top}/to-file"))[0]["target"] == "d/file"

    speedwell.ok("append", f"{top}/to-file", stdin=b" more")
    speedwell.ok("put", "-", f"{top}/nowhere", stdin=b"made")
    assert speedwell.ok("cat", f"{top}/d/file", f"{top}/d/new") == "content moremade"
    speedwell.ok("mkdir", "-p", f"{top}/to-d/f/g")
    speedwell.ok("mv", f"{top}/d/new", f"{top}/to-d/f")
    assert speedwell.ok("ls", f"{top}/d/f") == "g/\nnew\n"
    speedwell.ok("get", f"{top}/to-file", tmp_path / "got")
    assert (tmp_path / "got").read_text() == "content more"
    for refused in (("cat", f"{top}/around"), ("put", "-", f"{top}/around"), ("ls", f"{top}/around/x")):
        assert "more than 40 symbolic links" in error_line(speedwell.run(*refused))
    speedwell.ok("rm", "-r", f"{top}/to-d", f"{top}/around")
    assert speedwell.ok("ls", top) == "d/\nnowhere\nto-file\n"
    speedwell.ok("mv", f"{top}/nowhere", f"{top}/to-file")
    assert speedwell.ok("ls", "-l", top).splitlines()[-1].endswith("to-file -> d/new")
