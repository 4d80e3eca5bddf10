"""Where a server may listen without an identity on emulated networks, as the kernel tells."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.root

SPACE = "speedwell-where"
INSIDE = ("nsenter", f"--net=/run/netns/{SPACE}")
"""`ip netns exec` and `ip -n` mount file systems, which a chroot refuses."""
CHECK = """
import sys
from speedwell.fs import insecure
for host in sys.argv[1:]:
    try:
        insecure.check(None, insecure.FABRIC, listen=host)
        print("taken")
    except Exception as error:
        print(error)
"""


def run(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def space() -> Iterator[None]:
    """With an emulated network, a bridge to it, and a tunnel, which leads away."""
    run("ip", "netns", "add", SPACE)
    try:
        for words in ("link add here type veth peer name there", "addr add 10.9.0.1/24 dev here", "link set here up",
                      "link add across type bridge", "addr add 10.9.1.1/24 dev across", "link set across up"):
            run(*INSIDE, "ip", *words.split())
        yield
    finally:
        run("ip", "netns", "del", SPACE)


def test_emulated_interfaces_are_a_fabric_and_others_are_not(space: None) -> None:
    def said(*hosts: str) -> list[str]:
        return run(*INSIDE, sys.executable, "-c", CHECK, *hosts).splitlines()

    assert said("10.9.0.1", "10.9.1.1", "0.0.0.0") == ["taken"] * 3
    run(*INSIDE, "ip", "tuntap", "add", "tunnel", "mode", "tun")
    run(*INSIDE, "ip", "addr", "add", "10.9.2.1/24", "dev", "tunnel")
    assert said("10.9.0.1", "10.9.1.1") == ["taken"] * 2
    for refusal in said("10.9.2.1", "0.0.0.0"):
        assert "is on tunnel, which is no emulated network" in refusal
    run(*INSIDE, "ip", "tuntap", "add", "tapped", "mode", "tap")
    run(*INSIDE, "ip", "link", "set", "tapped", "master", "across")
    [refusal] = said("10.9.1.1")
    assert "is on across" in refusal, "a bridge leads to where its members do"


def test_loopback_alone_is_not_a_fabrics_address(space: None, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("speedwell-nameserver")
    done = subprocess.run([*INSIDE, program, "--insecure", "--listen", "10.9.0.1:0", "--new",
                           "--directory", tmp_path / "names"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--listen: other machines may reach 10.9.0.1" in done.stderr
    assert not (tmp_path / "names").exists()
