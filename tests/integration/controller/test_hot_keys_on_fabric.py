"""A key that is read very often, on real switches: replicas answer it, and nobody reads what was before a change."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from speedwell.controller.metadata.steering import COOKIE, HOT
from speedwell.fs.metadata_store.addresses import address_of
from speedwell.topo.fabric import spine_leaf
from tests.integration.controller.northbound import northbound
from tests.integration.controller.test_metadata_on_fabric import SETTINGS, Metadata
from tests.waiting import wait_until

pytestmark = pytest.mark.root

CLIENT = """
import sys, time
from pathlib import Path
from speedwell.fs.identity.known import identity_for
from speedwell.fs.metadata_store.client import MetadataClient
role, key, stop, told = sys.argv[1], sys.argv[2].encode(), Path(sys.argv[3]), Path(sys.argv[4])
client, last, done = MetadataClient(timeout_seconds=20, identity=identity_for("")), 0, 0
while not stop.exists():
    if role == "write":
        client.put(key, b"%d" % (done + 1))
        written = told.with_suffix(".new")
        written.write_bytes(b"%d" % (done + 1))
        written.replace(told)
        time.sleep(0.1)
    else:
        least = max(int(told.read_bytes()), last)
        last = int(client.get(key) or b"0")
        assert last >= least, f"{last} was read after {least}"
    done += 1
    if role == "once":
        break
print(done)
"""
KEY = "the one that all read"
ADDRESS = str(address_of(KEY.encode()))


@pytest.mark.timeout(600)
def test_a_hot_key_is_answered_by_replicas_in_each_rack_while_it_changes_and_by_its_owner_afterwards(
        tmp_path: Path) -> None:
    fabric = spine_leaf(leaves=2, spines=2, hosts_per_leaf=4)
    with northbound(fabric, tmp_path, SETTINGS) as running:
        site = Metadata(running, tmp_path)
        running.emulation.announce_hosts()
        wait_until(lambda: len(site.hosts()) == len(fabric.hosts), 30, "the controller does not find all hosts")
        racks = [[host.name for host in fabric.hosts if fabric.edge_switch_of(host) == edge]
                 for edge in dict.fromkeys(map(fabric.edge_switch_of, fabric.hosts))]
        servers = [name for rack in racks for name in rack[:2]]
        for server in servers:
            site.serve(server)
        site.wait_until_settled(set(servers))
        stop, told = tmp_path / "stop", tmp_path / "told"
        told.write_bytes(b"0")

        def begin(client: str, role: str) -> tuple[subprocess.Popen[bytes], Path]:
            log = tmp_path / f"{role}-{client}"
            return running.emulation.popen(client, [sys.executable, "-c", CLIENT, role, KEY, str(stop), str(told)],
                                           log, site.as_operator), log

        def hot_keys() -> dict[str, set[str]]:
            return {key["address"]: set(key["replicas"]) for key in running.get("/v1/metadata/servers")["hot_keys"]}

        def packets() -> dict[str, int]:
            """That each hot entry has sent to its server, by switch and server's port."""
            return {f"{switch.name} {port}": int(number) for switch in fabric.switches
                    for number, port in re.findall(
                        rf"n_packets=(\d+),.*priority={HOT},.*nw_dst={ADDRESS} actions=.*output:\"?([\w-]+)",
                        running.emulation.ovs_ofctl(switch.name, "dump-flows", f"cookie={COOKIE:#x}/-1"))}

        clients = [begin(client, "read") for rack in racks for client in rack[2:]] + [begin(racks[0][2], "write")]

        def failed() -> str:
            return "".join(log.read_text() for process, log in clients if process.poll() is not None)

        def both_racks_answer() -> bool:
            assert not failed(), failed()
            return len(packets()) == len(servers)

        wait_until(both_racks_answer, 120, lambda: f"{hot_keys()} {running.get('/v1/metadata/servers')}")
        assert hot_keys() == {ADDRESS: {running.ip(server) for server in servers}}
        before = packets()
        wait_until(lambda: all(packets().get(place, 0) > number + 50 for place, number in before.items()), 60,
                   lambda: f"not all replicas are asked: {before} {packets()}")
        tables = [running.get(f"/v1/metadata/tables/{switch.dpid_hex}") for switch in fabric.switches]
        assert sum(table["hot"] for table in tables) == len(servers)
        written = int(told.read_bytes())
        wait_until(lambda: int(told.read_bytes()) > written + 5, 60, "it cannot be changed any more")
        assert not failed(), failed()
        stop.touch()
        for process, log in clients:
            assert process.wait(60) == 0, log.read_text()
        wait_until(lambda: not hot_keys() and not packets(), 60, lambda: f"{hot_keys()} {packets()}")
        stop.unlink()
        last, log = begin(racks[1][3], "once")
        assert last.wait(60) == 0, log.read_text()
