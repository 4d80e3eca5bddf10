"""df, du, find, ls -R, chmod, chown and completion against a running installation, as a user types them."""

import json
import os
import stat
import subprocess

import pytest

from tests.integration.cluster.executable import SCRIPTS, Speedwell, error_line


@pytest.fixture(scope="module")
def speedwell(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tree")
    speedwell = Speedwell(directory / "state")
    speedwell.ok("up", "--local", directory / "c", "--dataservers", "1")
    speedwell.ok("mkdir", "-p", "/t/a/b")
    for path, size in (("/t/one", 10), ("/t/a/two.log", 200), ("/t/a/b/three.log", 3000)):
        speedwell.ok("put", "-", path, stdin=b"x" * size)
    yield speedwell
    speedwell.ok("down")


def mode_of(speedwell, path):
    return int(json.loads(speedwell.ok("stat", "--json", path))[0]["mode"], 8)


def test_du_adds_up_what_lies_below_each_directory(speedwell):
    assert speedwell.ok("du", "/t").splitlines() == ["3000\t/t/a/b", "3200\t/t/a", "3210\t/t"]
    assert speedwell.ok("du", "-s", "/t").splitlines() == ["3210\t/t"]
    assert speedwell.ok("du", "/t/one").splitlines() == ["10\t/t/one"]
    assert {"path": "/t/a", "size": 3200} in json.loads(speedwell.ok("du", "--json", "/t"))
    assert "missing" in error_line(speedwell.run("du", "/missing"))


def test_find_selects_by_name_and_type(speedwell):
    assert set(speedwell.ok("find", "/t", "--name", "*.log").split()) == {"/t/a/two.log", "/t/a/b/three.log"}
    assert set(speedwell.ok("find", "/t", "--type", "d").split()) == {"/t", "/t/a", "/t/a/b"}


def test_ls_goes_through_the_whole_tree(speedwell):
    assert speedwell.ok("ls", "-R", "/t").split("\n\n") == [
        "/t:\na/\none", "/t/a:\nb/\ntwo.log", "/t/a/b:\nthree.log\n"]


def test_ls_names_a_file_without_a_heading_also_recursively(speedwell):
    assert speedwell.ok("ls", "-R", "/t/one") == "/t/one\n"


@pytest.mark.parametrize(("arguments", "shown"), [
    (("ls", "/missing", "/t/one"), "/t/one\n"),
    (("stat", "/missing", "/t/one"), "        path  /t/one\n"),
    (("du", "/missing", "/t/one"), "10\t/t/one"),
    (("find", "/missing", "/t/one"), "/t/one"),
    (("chmod", "600", "/missing", "/t/one"), ""),
    (("chown", "0", "/missing", "/t/one"), ""),
])
def test_a_path_that_is_missing_keeps_no_other_from_being_done(speedwell, arguments, shown):
    done = speedwell.run(*arguments)
    assert done.returncode == 1
    assert "/missing" in error_line(done)
    assert done.stdout.decode().startswith(shown)


def test_rm_and_mkdir_go_on_after_a_path_that_is_missing(speedwell):
    error_line(speedwell.run("mkdir", "/missing/below", "/made"))
    assert "made/" in speedwell.ok("ls", "/").splitlines()
    error_line(speedwell.run("rm", "-r", "/missing", "/made"))
    assert "made/" not in speedwell.ok("ls", "/").splitlines()


def test_df_adds_up(speedwell):
    row = json.loads(speedwell.ok("df", "--json"))
    assert row["size"] == row["used"] + row["available"] > 0
    assert speedwell.ok("df").splitlines()[0].split() == ["size", "used", "available", "use"]


@pytest.mark.parametrize("wanted", ["640", "u+x,go-r", "a=rX", "g+s", "+t", "u=rwx,o="])
def test_chmod_does_what_chmod_does(speedwell, tmp_path, wanted):
    speedwell.ok("chmod", "644", "/t/one")
    beside = tmp_path / "one"
    beside.touch(0o644)
    subprocess.run(["chmod", wanted, beside], check=True, env={**os.environ, "POSIXLY_CORRECT": "1"})
    speedwell.ok("chmod", wanted, "/t/one")
    assert mode_of(speedwell, "/t/one") == stat.S_IMODE(beside.stat().st_mode)


def test_owner_and_permissions_of_a_whole_tree(speedwell):
    speedwell.ok("chown", "-R", "1234:daemon", "/t/a")
    speedwell.ok("chmod", "-R", "750", "/t/a")
    for path in ("/t/a", "/t/a/b", "/t/a/b/three.log"):
        found = json.loads(speedwell.ok("stat", "--json", path))[0]
        assert (found["uid"], found["gid"], int(found["mode"], 8)) == (1234, 1, 0o750)
    assert json.loads(speedwell.ok("stat", "--json", "/t"))[0]["uid"] == os.geteuid()


@pytest.mark.parametrize(("arguments", "told"), [
    (["chmod", "9", "/t/one"], "neither octal like 640 nor symbolic"),
    (["chown", "nobody-at-all", "/t/one"], "no user 'nobody-at-all'"),
    (["chown", ":", "/t/one"], "give USER"),
    (["find", "/t", "--type", "z"], "'z' is not one of"),
])
def test_nonsense_is_refused_by_name_and_changes_nothing(speedwell, arguments, told):
    before = speedwell.ok("stat", "--json", "/t/one")
    refused = speedwell.run(*arguments)
    assert refused.returncode == 2 and told in error_line(refused)
    assert speedwell.ok("stat", "--json", "/t/one") == before


def test_bash_completes_commands(speedwell):
    assert "_SPEEDWELL_COMPLETE" in speedwell.ok("completion", "bash")
    asked = subprocess.run([SCRIPTS / "speedwell"], capture_output=True, text=True, check=False, env={
        **os.environ, "_SPEEDWELL_COMPLETE": "bash_complete", "COMP_WORDS": "speedwell sta", "COMP_CWORD": "1"})
    assert {line.partition(",")[2] for line in asked.stdout.splitlines()} == {"stat", "status"}


def test_the_version_is_an_option_too(speedwell):
    assert speedwell.ok("--version") == speedwell.ok("version")
