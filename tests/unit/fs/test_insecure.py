"""Servers without an identity start only when told so, and listen only where no other machine reaches them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from speedwell.fs import insecure
from speedwell.fs.errors import InvalidArgument
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.roles import DATASERVER, NAMESERVER

SCRIPTS = Path(sys.executable).parent
SERVERS = {
    "speedwell-nameserver": ["--new", "--directory", "names", "--listen", "{host}:0"],
    "speedwell-dataserver": ["--id", "d0", "--nameserver", "127.0.0.1:9", "--directory", "d0",
                             "--listen", "{host}:0"],
    "speedwell-controller": ["--openflow-port", "0", "--rest-port", "0", "--rest-host", "{host}"],
    "speedwell-metadata-store": ["--store", "leveldb:store", "--listen", "{host}:0"],
    "speedwell-timeslices": ["--key-file", "key", "--listen", "{host}:0"],
}
ELSEWHERE = "192.0.2.1"
"""Of nobody (RFC 5737)."""


def start(program: str, directory: Path, *options: str, host: str = "127.0.0.1") -> subprocess.CompletedProcess[str]:
    """What it says until it serves, when it is ended, or refuses."""
    (directory / "key").write_text("a master key of 16 bytes or more")
    environment = {name: value for name, value in os.environ.items() if name != insecure.VARIABLE}
    arguments = [word.format(host=host) for word in SERVERS[program]]
    with subprocess.Popen([SCRIPTS / program, *arguments, *options], cwd=directory, env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        said = process.stdout.readline()
        if said:
            process.terminate()
        process.wait(30)
        return subprocess.CompletedProcess(program, process.returncode, said, process.stderr.read())


@pytest.mark.parametrize("program", SERVERS)
def test_a_server_starts_without_identity_when_told_so_on_loopback_alone(program: str, tmp_path: Path) -> None:
    refused = start(program, tmp_path)
    assert refused.returncode == 2 and "--identity: name this server's certificates" in refused.stderr
    refused = start(program, tmp_path, "--insecure", host=ELSEWHERE)
    assert refused.returncode == 2 and f"other machines may reach {ELSEWHERE}" in refused.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"key"}, "something is changed"
    assert start(program, tmp_path, "--insecure").stdout.startswith("ready ")


@pytest.mark.parametrize("program", ["speedwell-nameserver", "speedwell-dataserver"])
def test_tokens_are_not_turned_off_where_there_are_identities(program: str, tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "identity")
    authority.ensure([("d0", DATASERVER), ("nameserver", NAMESERVER)])
    name = "d0" if "data" in program else "nameserver"
    refused = start(program, tmp_path, "--no-tokens", "--identity", str(authority.directory / name), host="0.0.0.0")
    assert refused.returncode == 2 and "--no-tokens: everybody who reaches the data channel" in refused.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"key", "identity"}, "something is changed"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.5.5.5", "::1", "localhost"])
def test_loopback_is_what_this_machine_alone_reaches(host: str) -> None:
    insecure.check(None, insecure.LOOPBACK, listen=host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "fe80::1", "no-such-host.invalid"])
def test_what_others_may_reach_is_refused_by_its_option(host: str) -> None:
    with pytest.raises(InvalidArgument, match=f"--rest-host: other machines may reach {host}: "):
        insecure.check(None, insecure.LOOPBACK, rest_host=host)


def test_an_address_of_this_machines_own_network_is_no_fabrics() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        try:
            unsent.connect((ELSEWHERE, 9))
        except OSError:
            pytest.skip("this machine has no network")
        own = unsent.getsockname()[0]
    kind = subprocess.run(["ip", "-d", "-o", "addr", "show", "to", own], capture_output=True, text=True, check=False)
    if any(word in kind.stdout for word in ("veth", "bridge", "dummy")):
        pytest.skip("this machine's network is an emulated one, as in a container")
    for host in (own, "0.0.0.0", "0", "0::0", f"::ffff:{own}"):     # however it is written
        with pytest.raises(InvalidArgument, match="is no emulated network"):
            insecure.check(None, insecure.FABRIC, listen=host)
