"""The names of a fabric's nodes as a hosts file, which the controller reads too."""

from pathlib import Path

from speedwell.controller.topology.host_names import read_host_names
from speedwell.topo.fabric import three_tier
from speedwell.topo.fabric.hosts_file import hosts_file
from speedwell.topo.fabric.machine import with_machine


def test_every_node_has_its_name_and_no_name_stands_twice(tmp_path: Path) -> None:
    fabric = with_machine(three_tier(pods=2, racks_per_pod=1, hosts_per_rack=2, aggregations_per_pod=1, cores=1))
    file = tmp_path / "hosts"
    file.write_text(hosts_file(fabric, "127.0.0.1 localhost\n10.0.0.1 somebody-else\n"))
    names = read_host_names(file)
    assert {names[host.ip] for host in fabric.hosts} == {host.name for host in fabric.hosts}
    assert {names[switch.management_ip] for switch in fabric.switches} == {switch.name for switch in fabric.switches}
    assert names["10.255.0.1"] == "controller" and names["127.0.0.1"] == "localhost"
    words = [name for line in hosts_file(fabric).splitlines() for name in line.split()[1:]]
    assert len(words) == len(set(words))
