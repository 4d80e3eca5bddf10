from pathlib import Path

import pytest
from click.testing import CliRunner

from speedwell.evaluation.commands.simulate import simulate
from speedwell.topo.cli import fabric
from speedwell.topo.fabric import Fabric, InvalidFabric, fat_tree, spine_leaf, three_tier
from speedwell.topo.fabric_spec import PARAMETERS, parse_fabric

ONES = {name: "1" for names in PARAMETERS.values() for name in names} | {"k": "2"}


def test_a_family_alone_is_its_builder_with_the_defaults() -> None:
    assert parse_fabric("three-tier") == three_tier()
    assert parse_fabric("fat-tree") == fat_tree()


def test_parameters_and_ratios_per_tier_reach_the_builder() -> None:
    assert parse_fabric("three-tier,pods=1,racks=3,host_mbps=5,edge_ratio=4") == three_tier(
        pods=1, racks_per_pod=3, host_bps=5_000_000, oversubscription={"edge": 4, "aggregation": 4})
    assert parse_fabric("spine-leaf, leaves=2, ratio=1.5") == spine_leaf(leaves=2, oversubscription=1.5)


def test_the_builders_own_names_are_taken_as_well() -> None:
    assert parse_fabric("three-tier,racks_per_pod=3,hosts_per_rack=2,host_bps=5e6,edge=4") == three_tier(
        racks_per_pod=3, hosts_per_rack=2, host_bps=5_000_000, oversubscription={"edge": 4, "aggregation": 4})
    assert parse_fabric("spine-leaf,hosts_per_leaf=3,oversubscription=1") == spine_leaf(
        hosts_per_leaf=3, oversubscription=1)


@pytest.mark.parametrize("words", ["pods=4,pods=5", "racks=2,racks_per_pod=3"])
def test_a_parameter_that_is_given_twice_is_refused_by_name(words: str) -> None:
    with pytest.raises(InvalidFabric, match=words.split("=")[0]):
        parse_fabric(f"three-tier,{words}")


@pytest.mark.parametrize("family", PARAMETERS)
def test_every_command_takes_a_fabric_in_each_form_with_the_same_parameters(family: str, tmp_path: Path) -> None:
    from speedwell.topo.emulation.mn import topos  # Mininet takes a second to import

    names = PARAMETERS[family]
    spec = ",".join([family, *(f"{name}={ONES[name]}" for name in names)])
    wanted = parse_fabric(spec)
    file = tmp_path / "own.json"
    file.write_text(wanted.to_json())
    options = [word for name in names
               for word in (f"--{name.replace('_', '-')}" if name != "k" else "-k", ONES[name])]
    for arguments in ([family, *options], [spec], [str(file)]):
        described = CliRunner().invoke(fabric, [*arguments, "--describe"], catch_exceptions=False)
        assert Fabric.from_json(described.output) == wanted, arguments
    assert topos[family].description(*(int(ONES[name]) for name in names)) == wanted
    assert topos[family].description(**{name: int(ONES[name]) for name in names}) == wanted
    assert topos["file"].description(str(file)) == wanted


def test_simulate_takes_a_family_and_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(spine_leaf(leaves=2).to_json())
    for spec in ("spine-leaf,leaves=2", str(tmp_path / "own.json")):
        done = CliRunner().invoke(simulate, ["--fabric", spec, "--rate", "1000"])
        assert "the reads ask for" in done.output
    assert "neither a file nor a fabric" in CliRunner().invoke(simulate, ["--fabric", "torus"]).output


@pytest.mark.parametrize(("text", "message"), [
    ("torus", "neither a file nor a fabric; there are three-tier"),
    ("three-tier,pods", "NAME=VALUE"),
    ("three-tier,ratio=2", "no parameter is named 'ratio'; there are pods, racks"),
    ("three-tier,pods=many", "not a number"),
    ("three-tier,pods=0", "^pods: "),
    ("three-tier,racks=0", "^racks: "),
    ("three-tier,racks_per_pod=0", "^racks_per_pod: "),
    ("three-tier,hosts=0", "^hosts: "),
    ("three-tier,edge_ratio=0", "^edge_ratio: "),
    ("spine-leaf,ratio=0", "^ratio: "),
    ("fat-tree,host_mbps=0", "^host_mbps: "),
    ("spine-leaf,edge=2", "no parameter is named 'edge'"),
])
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(InvalidFabric, match=message):
        parse_fabric(text)


def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "fabric.json"
    file.write_text("{")
    with pytest.raises(InvalidFabric, match=r"fabric\.json"):
        parse_fabric(str(file))


def test_a_file_that_breaks_a_rule_is_refused_in_our_own_words(tmp_path: Path) -> None:
    file = tmp_path / "fabric.json"
    file.write_text(spine_leaf(leaves=2).to_json().replace('"10.0.0.1"', '"10.0.0.300"'))
    with pytest.raises(InvalidFabric) as refused:
        parse_fabric(str(file))
    assert str(refused.value) == f"{file}: r0h0: '10.0.0.300' is not an IPv4 address"
