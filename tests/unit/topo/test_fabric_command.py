"""`speedwell fabric` as far as it goes without building anything."""

import click
import pytest
from click.testing import CliRunner

from speedwell.topo.cli import fabric
from speedwell.topo.emulation import InvalidSettings
from speedwell.topo.fabric import Fabric, InvalidFabric, fat_tree, spine_leaf, three_tier


@pytest.mark.parametrize(("arguments", "expected"), [
    (["three-tier", "--pods", "4", "--racks", "4", "--hosts", "4", "--host-mbps", "8"],
     three_tier(4, 4, 4, host_bps=8e6)),
    (["three-tier", "--aggregations", "3", "--cores", "5", "--edge-ratio", "1", "--aggregation-ratio", "16"],
     three_tier(aggregations_per_pod=3, cores=5, oversubscription={"edge": 1, "aggregation": 16})),
    (["fat-tree", "-k", "6"], fat_tree(6)),
    (["spine-leaf", "--leaves", "3", "--spines", "3", "--hosts", "2", "--ratio", "1"],
     spine_leaf(3, 3, 2, oversubscription=1)),
])
def test_describe_prints_the_fabric_that_is_asked_for(arguments: list[str], expected: Fabric) -> None:
    result = CliRunner().invoke(fabric, [*arguments, "--describe"])
    assert result.exit_code == 0
    assert Fabric.from_json(result.stdout) == expected


@pytest.mark.parametrize(("arguments", "error", "message"), [
    (["three-tier", "--pods", "0"], InvalidFabric, "pods: must be a whole number"),
    (["fat-tree", "-k", "5"], InvalidFabric, "k: a fat-tree needs an even number"),
    (["spine-leaf", "--host-mbps", "-3"], InvalidFabric, "host_bps"),
    (["three-tier", "--mtu", "99999"], InvalidSettings, "mtu"),
    (["three-tier", "--controller", "127.0.0.1:6653", "--insecure"], InvalidSettings,
     "controller: switches cannot reach"),
])
def test_impossible_requests_are_refused_by_name(arguments: list[str], error: type[Exception], message: str) -> None:
    result = CliRunner().invoke(fabric, arguments)
    assert isinstance(result.exception, error)
    assert message in str(result.exception)


@pytest.mark.parametrize("arguments", [
    ["three-tier", "--controller", "nonsense"],
    ["three-tier", "--controller", "10.255.0.1:99999"],
    ["three-tier", "--controller", "10.255.0.1:6653", "--no-controller"],
    ["three-tier", "--controller", "10.255.0.1:6653"],
    ["three-tier", "--controller", "10.255.0.1:6653", "--identity", "/", "--insecure"],
    ["three-tier", "--identity", "/"],
    ["three-tier", "--pods", "many"],
    ["ring"],
])
def test_wrong_usage_exits_with_two(arguments: list[str]) -> None:
    assert CliRunner().invoke(fabric, arguments).exit_code == 2


@pytest.mark.parametrize("spec", ["ring", "no-such.json", "three-tier,pods=0"])
def test_what_is_no_fabric_is_refused_with_a_help_that_there_is(spec: str) -> None:
    refused = CliRunner().invoke(fabric, [spec], prog_name="speedwell fabric", standalone_mode=False)
    assert isinstance(refused.exception, click.UsageError) and refused.exception.ctx is not None
    assert refused.exception.ctx.command_path == "speedwell fabric"
