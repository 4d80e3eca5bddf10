"""What is found out about interfaces, on real ones in a network namespace of their own."""

import subprocess
import sys

import pytest

SCRIPT = """
import subprocess
for command in ("ip link set lo up", "ip link add name left type veth peer name right",
                "ip addr add 10.9.8.7/24 dev left", "ip link set left up"):
    subprocess.run(command.split(), check=True)
from speedwell.fs.wire.network_interface import checksums_in_hardware
print(checksums_in_hardware("127.0.0.1"), checksums_in_hardware("10.9.8.7"), checksums_in_hardware("10.1.1.1"))
subprocess.run("ethtool -K left tx off".split(), check=True, stdout=subprocess.DEVNULL)
checksums_in_hardware.cache_clear()
print(checksums_in_hardware("10.9.8.7"))
"""


@pytest.mark.root
def test_an_interface_without_checksum_offload_is_told_from_others() -> None:
    done = subprocess.run(["unshare", "--net", sys.executable, "-c", SCRIPT], capture_output=True, text=True,
                          timeout=30, check=True)
    assert done.stdout.split() == ["True", "True", "True", "False"]
