"""`speedwell up --local` makes identities by itself, renews them, and takes back what is revoked."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from speedwell.cluster.processes import Processes
from speedwell.fs.client import Client
from speedwell.fs.errors import NotAuthenticated
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.wire.channel import connect
from tests.integration.cluster.executable import SCRIPTS, Speedwell, error_line, kill, pids
from tests.waiting import wait_until

pytestmark = pytest.mark.root

RENEWAL_SECONDS = 30.0
NOBODY = 65534


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Speedwell, Path]]:
    tmp_path = tmp_path_factory.mktemp("identities")
    speedwell, directory = Speedwell(tmp_path / "state"), tmp_path / "c"
    speedwell.ok("up", "--local", directory, "--dataservers", 1, "--mount", tmp_path / "m")
    yield speedwell, directory
    speedwell.ok("down", "--local", directory, "--force")


def identities(speedwell: Speedwell) -> dict[str, dict[str, object]]:
    """The last certificate of each name."""
    return {each["name"]: each for each in json.loads(speedwell.ok("identity", "list", "--json"))}


def nameserver(directory: Path) -> str:
    address: str = Processes(directory).settings["addresses"]["nameserver"]
    return address


def test_up_needs_no_step_by_hand_and_who_has_no_certificate_is_refused(
        place: tuple[Speedwell, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    speedwell, directory = place
    assert {name: each["role"] for name, each in identities(speedwell).items()} == {
        "nameserver": "nameserver", "d0": "dataserver", "mount": "mount", "operator": "operator"}
    speedwell.ok("put", "/etc/hostname", "/f")
    assert (directory.parent / "m" / "f").read_bytes() == Path("/etc/hostname").read_bytes()
    assert "no identities" not in speedwell.ok("status")
    speedwell.ok("ls", "--nameserver", nameserver(directory))     # found by the address
    monkeypatch.setenv("SPEEDWELL_STATE_DIRECTORY", str(tmp_path))
    with Client(nameserver(directory)) as stranger, pytest.raises(NotAuthenticated, match="certificate"):
        stranger.lookup("/f")
    for path in (directory / "identity").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_another_user_of_the_machine_gets_in_neither_by_network_nor_by_the_local_socket(
        place: tuple[Speedwell, Path]) -> None:
    _, directory = place
    # nobody may enter a checkout below /root: a first round, as root, imports all that is needed
    program = ("import os, sys; from speedwell.fs.client import Client\n"
               "def answers(ask):\n"
               "    for host in (None, '127.0.0.1'):\n"
               "        with Client(sys.argv[1], local_host=host) as client:\n"
               "            try: ask(client); yield 'let in'\n"
               "            except Exception as error: yield type(error).__name__\n"
               "list(answers(lambda client: client.lookup('/')))\n"
               f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
               "print(*answers(lambda client: client.create('/taken')))\n")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as home:
        os.chmod(home, 0o777)  # noqa: PTH101
        tried = subprocess.run([str(SCRIPTS / "python"), "-c", program, nameserver(directory)], text=True,
                               capture_output=True, timeout=60, check=False, cwd=Path.cwd(),
                               env={"HOME": home, "PATH": os.environ["PATH"]})
    assert tried.stdout.split() == ["NotAuthenticated"] * 2, tried.stderr


def test_certificates_are_renewed_while_everything_runs(place: tuple[Speedwell, Path]) -> None:
    speedwell, directory = place
    before, running = identities(speedwell), pids(directory)
    speedwell.ok("identity", "renew", "--validity", "12s")
    first = identities(speedwell)
    assert all(first[name]["serial"] != before[name]["serial"] for name in before)

    def renewed() -> bool:
        now = identities(speedwell)
        return all(float(str(now[name]["expires_at"])) > float(str(first[name]["expires_at"])) + 10 for name in now)

    mounted = directory.parent / "m"
    numbers = iter(range(10**6))

    def works_and_is_renewed() -> bool:
        number = next(numbers)
        (mounted / f"g{number}").write_bytes(b"x")
        (mounted / f"g{number}").unlink()
        speedwell.ok("ls", "/")
        return renewed()

    wait_until(works_and_is_renewed, RENEWAL_SECONDS * 2, "the supervisor renews nothing")
    kill(directory, "d0")
    wait_until(lambda: pids(directory).get("d0") not in (None, running["d0"]), 30, "d0 is not started again")
    speedwell.ok("identity", "renew", "--validity", "30d")
    speedwell.ok("put", "/etc/hostname", "/g")
    assert {name: pid for name, pid in pids(directory).items() if name != "d0"} == {
        name: pid for name, pid in running.items() if name != "d0"}, "nothing else was started again"


def test_a_nameserver_that_is_killed_serves_its_clients_again(place: tuple[Speedwell, Path]) -> None:
    speedwell, directory = place
    before = pids(directory)["nameserver"]
    kill(directory, "nameserver")
    (directory.parent / "m" / "after").write_bytes(b"x")
    assert speedwell.ok("cat", "/after") == "x"
    assert pids(directory)["nameserver"] != before
    assert "clean" in speedwell.ok("fsck")


def test_a_revoked_mount_does_nothing_until_it_gets_a_new_certificate(place: tuple[Speedwell, Path]) -> None:
    speedwell, directory = place
    file = directory.parent / "m" / "of the mount"
    speedwell.ok("identity", "revoke", "mount")
    assert identities(speedwell)["mount"]["state"] == "revoked"

    def refused() -> bool:
        try:
            file.write_bytes(b"x")
        except PermissionError:
            return True
        return False

    wait_until(refused, 15, "a revoked mount goes on")
    speedwell.ok("identity", "issue", "mount", "mount")
    wait_until(lambda: not refused(), 15, "the mount does not take its new certificate")


def test_refusals_of_the_command_are_one_line(place: tuple[Speedwell, Path], tmp_path: Path) -> None:
    speedwell, _ = place
    assert "identity list" in error_line(speedwell.run("identity", "revoke", "nobody"))
    assert "already" in error_line(speedwell.run("identity", "issue", "d0", "dataserver"))
    assert "holds no certificate authority" in error_line(speedwell.run("identity", "list", "--directory", tmp_path))
    assert speedwell.run("identity", "issue", "x", "root").returncode == 2


def test_contents_cross_the_network_over_tls_if_wanted(tmp_path: Path) -> None:
    speedwell, directory = Speedwell(tmp_path / "state"), tmp_path / "c"
    refusal = "--encrypt-data: it does not go with --insecure"
    assert refusal in error_line(speedwell.run("up", "--local", directory, "--encrypt-data", "--insecure"))
    speedwell.ok("up", "--local", directory, "--dataservers", 2, "--replication", 2, "--encrypt-data")
    try:
        speedwell.ok("put", "/etc/hostname", "/f")
        assert speedwell.ok("cat", "/f") == Path("/etc/hostname").read_text()
        operator = directory / "identity" / "operator"
        with Client(nameserver(directory), identity=operator) as client:
            assert client.metadata.statistics().encrypts_data
            server = client.lookup("/f").replicas[0]
        with closing(connect(server.host, server.port)) as channel:
            channel.send(pb.DataRequest(identity=pb.IdentityOperation()))
            assert "only clients with a certificate" in channel.expect(pb.DataReply).message
        assert "already running" in speedwell.ok("up", "--local", directory)
        assert "runs with --encrypt-data" in error_line(
            speedwell.run("up", "--local", directory, "--no-encrypt-data"))
    finally:
        speedwell.ok("down", "--local", directory, "--force")


def test_without_identities_status_says_so_and_a_running_one_does_not_change(tmp_path: Path) -> None:
    speedwell, directory = Speedwell(tmp_path / "state"), tmp_path / "c"
    speedwell.ok("up", "--local", directory, "--dataservers", 1, "--insecure")
    try:
        assert "everybody who reaches its ports may do anything" in speedwell.ok("status")
        assert "without identities" in error_line(speedwell.run("up", "--local", directory, "--identity"))
        speedwell.ok("up", "--local", directory)
        speedwell.ok("put", "/etc/hostname", "/f")
        speedwell.ok("down", "--local", directory)
        speedwell.ok("up", "--local", directory, "--identity")
        assert "no identities" not in speedwell.ok("status")
        assert "clean" in speedwell.ok("fsck")
    finally:
        speedwell.run("down", "--local", directory, "--force")
        shutil.rmtree(directory)
