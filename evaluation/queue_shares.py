"""What flows of each traffic class get on a link between switches, measured with iperf3 on an emulated fabric."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from speedwell.controller.policy.network.traffic_classes import MINCOF_QUEUES, QueueClass
from speedwell.controller.queues.port_queues import QUEUE_TABLES, changes, queues_of
from speedwell.controller.switches.ovsdb import Database, read_tables, transact
from speedwell.topo.emulation import Emulation
from speedwell.topo.emulation.openvswitch import DATABASE_PORT
from speedwell.topo.emulation.processes import in_namespace
from speedwell.topo.fabric import Fabric, spine_leaf

IPERF_PORT = 5201
FIRST_LABEL = 900_000
PRIORITY = 60_000
OMITTED_SECONDS = 2
"""TCP's start, which is left out of what is measured."""


class IperfFailed(Exception):
    """A measurement did not come about; the message says what iperf3 said."""


def two_leaves(link_bps: float, hosts: int = len(MINCOF_QUEUES)) -> Fabric:
    """Two leaves on one spine; the links are as fast as a host's, so that flows of several hosts meet there."""
    return spine_leaf(leaves=2, spines=1, hosts_per_leaf=hosts, host_bps=link_bps, oversubscription=hosts)


def slice_links(emulation: Emulation, capacity_bps: float,
                classes: tuple[QueueClass, ...] = MINCOF_QUEUES) -> None:
    """Slice every link between switches as the controller would, without one."""
    fabric = emulation.fabric
    for switch in fabric.switches:
        database = Database(switch.management_ip, DATABASE_PORT)
        ports = queues_of(read_tables(database, QUEUE_TABLES), switch.dpid_hex).ports
        for port in fabric.ports(switch.name):
            if port.peer.startswith(("leaf", "spine")):
                transact(database, changes(ports[port.number], classes, capacity_bps))


def meter(emulation: Emulation, meter_id: int, rate_bps: float, burst_seconds: float) -> None:
    """Make or change a meter of the first leaf. The burst is what passes at once, in seconds at the rate."""
    listed = emulation.ovs_ofctl("leaf0", "dump-meters")
    emulation.ovs_ofctl("leaf0", "mod-meter" if f"meter={meter_id} " in listed else "add-meter",
                        f"meter={meter_id},kbps,burst,band=type=drop,rate={rate_bps / 1e3:.0f},"
                        f"burst_size={rate_bps * burst_seconds / 1e3:.0f}")


def steer(emulation: Emulation, classes: Mapping[str, QueueClass], meter_id: int | None = None) -> None:
    """Send what hosts of the first leaf send to hosts of the second in the traffic classes given, by host.

    The entries stand above and beside those of a controller, whose own they are not. With `meter_id` they are
    metered.
    """
    fabric = emulation.fabric
    leaf = fabric.edge_switch_of(fabric.host(next(iter(classes)))).name
    there = next(switch.name for switch in fabric.switches if switch.tier == "edge" and switch.name != leaf)
    uplink = fabric.port_toward(leaf, "spine0").number
    limit = f"meter:{meter_id}," if meter_id else ""
    if meter_id:
        meter(emulation, meter_id, 1e6, 1.0)
    away, onward, home = [], [], []
    for number, (host, queue) in enumerate(classes.items(), FIRST_LABEL):
        far = far_host(fabric, host)
        down = fabric.port_toward(there, far).number
        away.append(f"priority={PRIORITY},ip,nw_src={fabric.host(host).ip},nw_dst={fabric.host(far).ip},actions="
                    f"{limit}push_mpls:0x8847,set_field:{number}->mpls_label,set_field:{queue.number}->mpls_tc,"
                    f"output:{uplink}")
        onward.append(f"priority={PRIORITY},mpls,mpls_label={number},"
                      f"actions=output:{fabric.port_toward('spine0', there).number}")
        home.append(f"priority={PRIORITY},mpls,mpls_label={number},actions=pop_mpls:0x0800,output:{down}")
    for switch, entries in ((leaf, away), ("spine0", onward), (there, home)):
        emulation.ovs_ofctl(switch, "add-flows", "-", standard_input="\n".join(entries))


def bring_back(emulation: Emulation, hosts: Iterable[str]) -> None:
    """Static entries for what comes back to hosts of the first leaf, and for ARP: for a fabric without controller."""
    fabric = emulation.fabric
    for here in hosts:
        far = far_host(fabric, here)
        for source, target in ((here, far), (far, here)):
            near, at = (fabric.edge_switch_of(fabric.host(each)).name for each in (source, target))
            address = fabric.host(target).ip
            for switch, next_hop in ((near, "spine0"), ("spine0", at), (at, target)):
                port = fabric.port_toward(switch, next_hop).number
                emulation.ovs_ofctl(switch, "add-flow", f"arp,arp_tpa={address},actions=output:{port}")
                emulation.ovs_ofctl(switch, "add-flow", f"ip,nw_dst={address},actions=output:{port}")


def far_host(fabric: Fabric, host: str) -> str:
    """The host at the same place of the other leaf."""
    return host.replace("r0", "r1", 1) if host.startswith("r0") else host.replace("r1", "r0", 1)


def measure(emulation: Emulation, senders: Iterable[str], seconds: int, directory: Path,
            congestion_control: str = "cubic") -> dict[str, float]:
    """What each sender gets when all send at once, in bits/s of TCP payload. Raises IperfFailed."""
    fabric = emulation.fabric
    clients: dict[str, subprocess.Popen[str]] = {}
    for host in senders:
        far = far_host(fabric, host)
        emulation.popen(far, ["iperf3", "--server", "--one-off"], log=directory / f"iperf3-{far}.log")
        _wait_until_listening(emulation, far)
    for host in senders:
        clients[host] = subprocess.Popen(
            in_namespace(emulation.host_pid(host), [
                "iperf3", "--client", fabric.host(far_host(fabric, host)).ip, "--time", str(seconds), "--omit",
                str(OMITTED_SECONDS), "--congestion", congestion_control, "--json"]),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    rates = {}
    for host, client in clients.items():
        output, _ = client.communicate(timeout=seconds + OMITTED_SECONDS + 20)
        try:
            rates[host] = float(json.loads(output)["end"]["sum_received"]["bits_per_second"])
        except (ValueError, KeyError):
            raise IperfFailed(f"{host}: iperf3 says {output[-300:]!r}") from None
    return rates


def _wait_until_listening(emulation: Emulation, host: str) -> None:
    deadline = time.monotonic() + 5.0
    while f":{IPERF_PORT}" not in emulation.run(host, ["ss", "-Hltn"]).stdout:
        if time.monotonic() > deadline:
            raise IperfFailed(f"{host}: iperf3 does not listen")
        time.sleep(0.05)
