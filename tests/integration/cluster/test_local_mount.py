"""A local installation with its mount, as root and as an ordinary user."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from speedwell.cluster import mounts
from speedwell.cluster.processes import Processes, is_running
from tests.integration.cluster.executable import SCRIPTS, Speedwell, error_line, kill, pids
from tests.waiting import wait_until

pytestmark = pytest.mark.root


@pytest.fixture
def place(tmp_path):
    """A running installation: the command, its directory, its mount point."""
    speedwell, directory, mountpoint = Speedwell(tmp_path / "state"), tmp_path / "c", tmp_path / "m"
    speedwell.ok("up", "--local", directory, "--mount", mountpoint)
    yield speedwell, directory, mountpoint
    speedwell.ok("down", "--local", directory, "--force")
    assert mounts.mounted_here(mountpoint) is None


def test_files_pass_between_the_mount_and_the_commands(place, tmp_path):
    speedwell, _, mountpoint = place
    content = os.urandom(3_000_001)
    (mountpoint / "written").write_bytes(content)
    speedwell.ok("get", "/written", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content
    speedwell.ok("put", tmp_path / "back", "/stored")
    assert (mountpoint / "stored").read_bytes() == content
    assert "mounted" in speedwell.ok("status")


def test_down_unmounts_and_stops_and_up_brings_the_files_back(place):
    speedwell, directory, mountpoint = place
    (mountpoint / "file").write_bytes(b"precious")
    records = Processes(directory).running()
    assert len(records) == 6
    speedwell.ok("down")
    assert mounts.mounted_here(mountpoint) is None
    assert list(mountpoint.iterdir()) == []
    assert [record for record in records if is_running(record)] == []
    speedwell.ok("up", "--local", directory)
    assert (mountpoint / "file").read_bytes() == b"precious"


def test_a_busy_mount_is_not_torn_away_and_its_user_is_named(place):
    speedwell, directory, mountpoint = place
    with subprocess.Popen(["sleep", "600"], cwd=mountpoint) as sleeper:
        refused = speedwell.run("down")
        assert refused.returncode == 1
        assert f"is in use by sleep (pid {sleeper.pid})".encode() in refused.stderr
        assert len(Processes(directory).running()) == 6
        (mountpoint / "file").write_bytes(b"still works")
        speedwell.ok("down", "--force")
        sleeper.kill()
    assert mounts.mounted_here(mountpoint) is None
    assert Processes(directory).running() == []


def test_a_killed_mount_comes_back_without_a_command(place):
    speedwell, directory, mountpoint = place
    (mountpoint / "file").write_bytes(b"precious")
    kill(directory, "mount")
    wait_until(lambda: readable(mountpoint / "file"), 20, "the mount does not come back")
    assert (mountpoint / "file").read_bytes() == b"precious"
    assert "mount was started again once" in speedwell.ok("status")


def test_what_somebody_unmounts_stays_unmounted_until_up(place):
    speedwell, directory, mountpoint = place
    subprocess.run(["umount", mountpoint], check=True)
    wait_until(lambda: "mount" not in pids(directory), 10, "the mount does not end")
    kill(directory, "d0")
    wait_until(lambda: "d0" in pids(directory), 20, "the supervisor starts nothing")
    assert mounts.mounted_here(mountpoint) is None
    speedwell.ok("up", "--local", directory)
    assert mounts.mounted_here(mountpoint) is not None


def test_a_killed_mount_is_named_by_status_and_mounted_again_by_up(place):
    speedwell, directory, mountpoint = place
    (mountpoint / "file").write_bytes(b"precious")
    kill(directory, "supervisor", "mount")
    status = speedwell.run("status")
    assert status.returncode == 1
    assert f"{mountpoint} is not mounted".encode() in status.stderr
    speedwell.ok("up", "--local", directory)
    assert (mountpoint / "file").read_bytes() == b"precious"
    assert sum(f" {mountpoint} " in line for line in Path("/proc/self/mountinfo").read_text().splitlines()) == 1


def test_down_clears_away_a_mount_whose_process_was_killed(place):
    speedwell, directory, mountpoint = place
    kill(directory, "supervisor", "mount")
    speedwell.ok("down")
    assert mounts.mounted_here(mountpoint) is None


def test_the_mount_works_on_after_the_nameserver_was_killed(place):
    _, directory, mountpoint = place
    (mountpoint / "file").write_bytes(b"precious")
    kill(directory, "nameserver")
    wait_until(lambda: readable(mountpoint / "file"), 20, "the mount finds the nameserver again")
    assert (mountpoint / "file").read_bytes() == b"precious"


def test_the_mount_point_of_one_installation_is_refused_to_another(place, tmp_path):
    speedwell, _, mountpoint = place
    refused = speedwell.run("up", "--local", tmp_path / "other", "--mount", mountpoint)
    assert refused.returncode == 1
    assert f"{mountpoint} is already a mount point of speedwell" in error_line(refused)


def test_another_mount_point_for_a_running_installation_is_refused(place, tmp_path):
    speedwell, directory, mountpoint = place
    refused = speedwell.run("up", "--local", directory, "--mount", tmp_path / "elsewhere")
    assert refused.returncode == 1
    assert f"runs with --mount {mountpoint}" in error_line(refused)


def test_what_mount_8_has_mounted_belongs_to_the_installation_that_its_source_names(place, tmp_path):
    speedwell, directory, mountpoint = place
    (mountpoint / "projects").mkdir()
    (mountpoint / "projects" / "file").write_bytes(b"seen by both")
    second = tmp_path / "second"
    second.mkdir()
    subprocess.run([SCRIPTS / "mount.speedwell", f"{directory}:/projects", second, "-o", "rw,ro,nofail"], check=True,
                   timeout=60, env={**os.environ, "SPEEDWELL_STATE_DIRECTORY": str(tmp_path / "state")})
    assert (second / "file").read_bytes() == b"seen by both"
    assert f"{second}" in speedwell.ok("status")
    with subprocess.Popen(["sleep", "600"], cwd=second) as sleeper:
        assert f"is in use by sleep (pid {sleeper.pid})".encode() in speedwell.run("down").stderr
        sleeper.kill()
    speedwell.ok("down")
    assert mounts.mounted_here(second) is None
    speedwell.ok("up", "--local", directory)


def test_mount_and_umount_add_a_second_mount(place, tmp_path):
    speedwell, _, mountpoint = place
    second = tmp_path / "second"
    assert f"mounted at {second}" in speedwell.ok("mount", second, "--cache-seconds", "0", "--strong", "-o",
                                                  "noexec,parts=3")
    process = Processes(tmp_path / "state" / "mounts").running()[0]
    assert b"\0--cache-seconds\x000.0\0--strong\0" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert "noexec" in mounts.mounted_here(second).options
    assert "unknown option 'sync'" in error_line(speedwell.run("mount", tmp_path / "third", "-o", "sync"))
    (mountpoint / "file").write_bytes(b"seen by both")
    assert (second / "file").read_bytes() == b"seen by both"
    assert "is already a mount point" in error_line(speedwell.run("mount", second))
    speedwell.ok("umount", second)
    assert mounts.mounted_here(second) is None
    assert Processes(tmp_path / "state" / "mounts").running() == []
    assert "is not a mount point" in error_line(speedwell.run("umount", second))
    assert "not of Speedwell" in error_line(speedwell.run("umount", "/proc"))


@pytest.fixture
def home():
    """A directory that every user may enter; pytest's own are closed to others than the one who tests."""
    with tempfile.TemporaryDirectory(prefix="speedwell-test-") as directory:
        Path(directory).chmod(0o777)
        yield Path(directory)


def test_an_ordinary_user_starts_uses_and_stops_an_installation(home, tmp_path):
    """In a mount namespace of its own, where /dev/fuse has the mode that Debian gives it (0666)."""
    as_nobody = "setpriv --reuid nobody --regid nogroup --clear-groups"
    if subprocess.run(["bash", "-c", f"{as_nobody} {SCRIPTS}/speedwell version && {as_nobody} test -w {home}"],
                      check=False, capture_output=True).returncode != 0:
        pytest.skip("this checkout cannot be read by an ordinary user")
    script = f"""
        set -e
        mkdir {tmp_path}/dev
        mount -t tmpfs -o dev none {tmp_path}/dev
        mknod -m 666 {tmp_path}/dev/fuse c 10 229
        mount --bind {tmp_path}/dev/fuse /dev/fuse
        cd {home}
        exec env -u SPEEDWELL_STATE_DIRECTORY XDG_STATE_HOME={home}/state {as_nobody} bash -e -c '
            speedwell up --local c --mount m
            echo content > m/file
            speedwell cat /file
            speedwell ls -l /
            stat -c %U m/file
            speedwell status
            speedwell top | tail -n 1
            speedwell down
            test -z "$(ls m)"
            ls state/speedwell'
        """
    environment = Speedwell(tmp_path / "unused").environment
    result = subprocess.run(["unshare", "--mount", "bash", "-c", script], capture_output=True, text=True,
                            env=environment, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\ncontent\n" in result.stdout
    assert "nobody nogroup" in result.stdout
    assert re.search(rf"^{home}/m +\d+ +[\d.]+ ", result.stdout, re.MULTILINE)
    assert "stopped" in result.stdout
    assert Processes(home / "c").running() == []


def readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def test_a_mount_whose_servers_are_gone_for_good_says_so_and_can_be_taken_away(place, tmp_path):
    """Each call ends 5 s after it began (docs/reference/mount-semantics.md), in one directory one after the other."""
    speedwell, directory, _ = place
    beside = tmp_path / "beside"
    speedwell.ok("mount", beside)
    listed, stated, read, made = (beside / name for name in ("listed", "stated", "read", "made"))
    for own in (listed, stated, read, made):
        own.mkdir()
        (own / "file").write_bytes(b"content")
    kill(directory, "supervisor", *(name for name in pids(directory) if name not in ("supervisor", "mount")))
    commands = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                for command in (["ls", listed], ["ls", "-l", stated], ["cat", read / "file"],
                                ["touch", made / "new"])]
    for command in commands:
        _, error = command.communicate(timeout=60)
        assert command.returncode != 0 and "Input/output error" in error, command.args
    speedwell.ok("umount", beside)
    assert mounts.mounted_here(beside) is None
