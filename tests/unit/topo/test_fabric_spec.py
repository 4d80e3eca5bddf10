import pytest

from cluster.errors import InvalidSetting
from cluster.fabric_spec import parse_fabric
from topo.fabric import spine_leaf, three_tier


def test_a_kind_alone_is_its_builder_with_the_defaults():
    assert parse_fabric("three-tier") == three_tier()


def test_parameters_and_ratios_per_tier_reach_the_builder():
    assert parse_fabric("three-tier,pods=1,host_bps=5e6,edge=4") == three_tier(
        pods=1, host_bps=5_000_000, oversubscription={"edge": 4, "aggregation": 4})
    assert parse_fabric("spine-leaf, leaves=2, oversubscription=1.5") == spine_leaf(leaves=2, oversubscription=1.5)


def test_a_file_with_a_description_is_that_fabric(tmp_path):
    file = tmp_path / "fabric.json"
    file.write_text(spine_leaf(leaves=2).to_json())
    assert parse_fabric(str(file)) == spine_leaf(leaves=2)


@pytest.mark.parametrize(("text", "message"), [
    ("torus", "neither a file nor a fabric"),
    ("", "neither a file nor a fabric"),
    ("three-tier,pods", "NAME=VALUE"),
    ("three-tier,oversubscription=2", "edge, aggregation"),
    ("three-tier,pods=many", "not a number"),
    ("three-tier,pods=0", "pods"),
    ("spine-leaf,edge=2", "oversubscription"),
])
def test_what_is_wrong_is_named(text, message):
    with pytest.raises(InvalidSetting, match=message):
        parse_fabric(text)


def test_a_damaged_file_is_refused_with_its_name(tmp_path):
    file = tmp_path / "fabric.json"
    file.write_text("{")
    with pytest.raises(InvalidSetting, match=r"fabric\.json"):
        parse_fabric(str(file))
