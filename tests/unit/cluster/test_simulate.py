"""What `speedwell simulate` refuses before it runs anything."""

import json
import sys
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner, Result

from speedwell.evaluation.commands.simulate import simulate
from speedwell.sim.workload import Workload, generate, mayflower_read_bits
from speedwell.topo.fabric import spine_leaf, three_tier
from speedwell.topo.fabric_spec import parse_fabric


def invoke(output: Path, *arguments: str) -> Result:
    return CliRunner().invoke(simulate, ["--output", str(output), *arguments])


@pytest.mark.parametrize(("arguments", "says"), [
    (["--rate", "-0.1"], "'--rate': -0.1 is not in the range x>0"),
    (["--rate", "0.07", "--rate", "nan"], "'--rate': 'nan' is not a number"),
    (["--rate", "0.9"], "the reads ask for 124 Gbit/s, and the links of all 64 hosts together carry 64"),
    (["--method", "closest+ecmp"], "method: 'closest+ecmp' is not one of "),
    (["--method", "nearest"], "method: 'nearest' lacks a path policy: nearest+mayflower or nearest+ecmp"),
    (["--locality", "0.9", "0.9", "0.9"], "locality: must be three probabilities"),
    (["--files", "0"], "'--files': 0 is not in the range x>=1"),
    (["--read-mib", "-1"], "'--read-mib': -1.0 is not in the range x>0"),
    (["--parts", "0"], "'--parts': 0 is not in the range x>=1"),
])
def test_bad_input_is_refused_by_name_and_leaves_nothing(arguments: list[str], says: str, tmp_path: Path) -> None:
    result = invoke(tmp_path / "results", *arguments)

    assert result.exit_code in (1, 2)
    assert says in result.output
    assert not (tmp_path / "results").exists()


def test_a_fabric_that_is_not_connected_is_refused(tmp_path: Path) -> None:
    description = json.loads(three_tier().to_json())
    description["links"] = [link for link in description["links"] if "core0" not in (link["a"], link["b"])]
    (tmp_path / "fabric.json").write_text(json.dumps(description))

    result = invoke(tmp_path / "results", "--fabric", str(tmp_path / "fabric.json"))

    assert result.exit_code == 1
    assert "the fabric is not connected" in result.output and "fabric.json" in result.output
    assert not (tmp_path / "results").exists()


def test_a_fabric_without_the_places_of_the_workload_is_refused(tmp_path: Path) -> None:
    result = invoke(tmp_path / "results", "--fabric", "spine-leaf,leaves=3,hosts=1,host_mbps=1000")

    assert result.exit_code == 1
    assert "the fabric has too few hosts" in result.output


def test_a_fabric_of_one_pod_has_replicas_and_clients_in_other_racks(tmp_path: Path) -> None:
    fabric = spine_leaf(leaves=4, spines=1, hosts_per_leaf=2)

    for read in islice(generate(Workload(0.001, files=20), fabric, Random(1)), 50):
        assert len({read.client, *read.replicas}) == 4
        assert len({fabric.host(holder).rack for holder in read.replicas[:2]}) == 2


@pytest.mark.parametrize("spec", ["three-tier", "fat-tree", "spine-leaf,host_mbps=8", "three-tier,host_mbps=1000"])
def test_a_read_is_as_much_smaller_as_links_are_slower_so_that_every_fabric_can_be_simulated(spec: str) -> None:
    fabric = parse_fabric(spec)
    slowest_bps = min(fabric.ports(host.name)[0].capacity_bps for host in fabric.hosts)

    read_bits = mayflower_read_bits(fabric)

    assert read_bits / slowest_bps == pytest.approx(Workload.read_bits / 1e9)
    assert next(generate(Workload(read_bits=read_bits), fabric, Random(1)))


def test_a_scheduler_needs_dask_and_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)

    result = invoke(tmp_path, "--scheduler", "tcp://127.0.0.1:8786")

    assert result.exit_code == 1
    assert "pip install -e '.[dask]'" in result.output
