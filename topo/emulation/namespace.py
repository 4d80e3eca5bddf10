"""What is set inside the namespace of a host or a switch, as one shell script per namespace: starting a process
for each interface and setting would take most of an emulation's start."""

import socket
import threading
from collections.abc import Sequence
from ipaddress import IPv4Address

from speedwell.topo import network_namespace
from speedwell.topo.emulation import processes
from speedwell.topo.emulation.errors import EmulationError
from speedwell.topo.emulation.management import NODE_INTERFACE
from speedwell.topo.fabric.addresses import (
    FABRIC_NETWORK,
    KEY_GATEWAY,
    KEY_GATEWAY_MAC,
    KEY_NETWORK,
    MANAGEMENT_NETWORK,
    SLOT_NETWORK,
)

_DISCARD_PORT = 9

# IPv6 would send router solicitations and multicast reports up to the controller as unknown hosts
_NO_IPV6 = """
for scope in all default; do
    setting=/proc/sys/net/ipv6/conf/$scope/disable_ipv6
    if [ -e $setting ]; then echo 1 > $setting; fi
done
"""


def enter(pid: int) -> None:
    """Move the calling thread, and whatever it starts, into the network namespace of a process.

    Raises `EmulationError`.
    """
    try:
        network_namespace.enter(pid)
    except OSError as error:
        raise EmulationError(f"cannot enter the network of process {pid}: {error.strerror}") from None


def announce_all(hosts: Sequence[tuple[int, str]]) -> None:
    """Let each host, given as a process in its namespace and its address, ask for the next one's address, and one
    that is alone for an address that nobody has: who asks is known either way."""
    for (pid, address), (_, neighbour) in zip(hosts, (*hosts[1:], *hosts[:1]), strict=True):
        announce(pid, neighbour if neighbour != address else str(IPv4Address(address) + 1))


def announce(pid: int, neighbour: str) -> None:
    """Let the host in a process's namespace ask the fabric for a neighbour's address, and so show its own."""
    refused: list[EmulationError] = []

    def ask() -> None:
        try:
            enter(pid)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.sendto(b"", (neighbour, _DISCARD_PORT))
        except EmulationError as error:
            refused.append(error)
        except OSError as error:
            refused.append(EmulationError(f"the host of process {pid} cannot send to {neighbour}: {error.strerror}"))

    thread = threading.Thread(target=ask)       # the namespace is the thread's and goes with it
    thread.start()
    thread.join()
    if refused:
        raise refused[0]


def set_up_host(name: str, pid: int, *, address: str, management_address: str, traffic_control: Sequence[str],
                congestion_control: str) -> None:
    """Address and start the interfaces of a host; raises `EmulationError` naming what the kernel refused.

    The host announces itself with an ARP broadcast when its interface starts, and leaves checksums to nobody:
    a userspace switch would forward what the sender's kernel left for the network card to fill in.
    """
    links = [*_management(management_address), f"addr add {address}/{FABRIC_NETWORK.prefixlen} dev eth0",
             "link set eth0 up",
             f"neigh replace {KEY_GATEWAY} lladdr {KEY_GATEWAY_MAC} nud permanent dev eth0",
             *(f"route add {network} via {KEY_GATEWAY} dev eth0 onlink src {address}"
               for network in (KEY_NETWORK, SLOT_NETWORK))]
    script = f"""set -e
{_NO_IPV6}
echo 1 > /proc/sys/net/ipv4/conf/all/arp_notify
echo 1 > /proc/sys/net/ipv4/conf/eth0/arp_notify
echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore
echo {congestion_control} > /proc/sys/net/ipv4/tcp_congestion_control
echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save
ethtool -K eth0 tx off > /dev/null
{_batch("ip", links)}
{_batch("tc", traffic_control)}
cat /proc/sys/net/ipv4/tcp_congestion_control
"""
    in_force = _run_script(name, pid, script).strip()
    if in_force != congestion_control:
        raise EmulationError(f"{name}: TCP uses {in_force} although {congestion_control} was set")


def set_up_switch(name: str, pid: int, *, management_address: str, interfaces: Sequence[str]) -> None:
    """Address and start the interfaces of a switch; raises `EmulationError` naming what the kernel refused."""
    links = [*_management(management_address), *(f"link set {interface} up" for interface in interfaces)]
    _run_script(name, pid, f"set -e\n{_NO_IPV6}\n{_batch('ip', links)}\n")


def set_traffic_control(name: str, pid: int, lines: Sequence[str]) -> None:
    """Apply lines for `tc -batch` inside a namespace; raises `EmulationError` naming what the kernel refused."""
    if lines:
        _run_script(name, pid, f"set -e\n{_batch('tc', lines)}\n")


def _management(address: str) -> list[str]:
    return ["link set lo up", f"addr add {address}/{MANAGEMENT_NETWORK.prefixlen} dev {NODE_INTERFACE}",
            f"link set {NODE_INTERFACE} up"]


def _batch(program: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{program} -batch - <<END", *lines, "END"]) if lines else ""


def _run_script(name: str, pid: int, script: str) -> str:
    return processes.run(processes.in_namespace(pid, ["sh"]), standard_input=script,
                         env=processes.environment("set-up"), what=f"setting up the namespace of {name}")
