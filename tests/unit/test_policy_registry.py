"""One list of policies: what is in it is offered everywhere, and nothing else is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from speedwell.controller.policy.coflows.coflow import CoflowScheduler
from speedwell.controller.policy.errors import InvalidPolicy, UnknownPolicy
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Path as NetworkPath
from speedwell.controller.policy.placements.request import Candidate, PlacementRequest
from speedwell.controller.policy.placements.sinbad import MeasuredBy
from speedwell.controller.policy.registry import POLICIES, Kind, Policy, PolicyRegistry
from tests.unit.policy.networks import network_with

ROOT = Path(__file__).parents[2]

NEW_POLICIES = """
from random import Random
from speedwell.controller.policy.coflows.coflow_comparators import FairSharing
from speedwell.controller.policy.placements.rack_aware import RackAware
from speedwell.controller.policy.registry import POLICIES, Kind, Policy

class Last:
    def choose(self, request, reachable, now):
        return reachable[-1]

POLICIES.register(Policy(Kind.REPLICA, "last", "the last one", "a test", lambda network, flows, generator: Last()))
POLICIES.register(Policy(Kind.PATH, "longest-name", "for a test", "a test", lambda paths, header: paths[-1:]))
POLICIES.register(Policy(Kind.COFLOW, "idle", "for a test", "a test", lambda network, bytes: FairSharing(network),
                         ranks_flows=True))
POLICIES.register(Policy(Kind.PLACEMENT, "anywhere", "for a test", "a test",
                         lambda network, generator, measured_by: RackAware(network, generator)))

import json
from pathlib import Path
from click.testing import CliRunner
from speedwell.cluster.commands.up import up
from speedwell.cluster.fabric import FabricCluster
from speedwell.cluster.fabric_settings import FabricSettings
from speedwell.controller.errors import InvalidSettings
from speedwell.controller.main import command as controller
from speedwell.controller.policy.reads.selection import Selector
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest
from speedwell.controller.reads.models import ReadBody
from speedwell.controller.settings import load_settings
from speedwell.evaluation.papers.reads import method_of
from speedwell.evaluation.papers.mincof import scheduler
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import spine_leaf

fabric = spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=1e9, oversubscription=1)
for command in (controller, up):
    help = CliRunner().invoke(command, ["--help"]).output
    assert "last" in help and "idle" in help and "anywhere" in help, help
assert "longest-name" in CliRunner().invoke(controller, ["--help"]).output
settings = load_settings(replica_policy="last", path_policy="longest-name", coflow_policy="idle",
                         queues="priorities", coflow_key_file=Path("key"))
assert (settings.replica_policy, settings.path_policy, settings.coflow_policy) == ("last", "longest-name", "idle")
try:
    load_settings(coflow_policy="idle", queues="mincof", coflow_key_file=Path("key"))
except InvalidSettings as error:
    assert "priorities" in str(error)
else:
    raise AssertionError("a ranking policy beside the queues of MinCOF")
schema = json.dumps(ReadBody.model_json_schema())
assert '"last"' in schema and '"longest-name"' in schema
options = FabricCluster(FabricSettings(fabric=fabric, replica_policy="last", coflows="idle",
                                       placement_policy="anywhere"))._controller().argv
assert "idle" in options and "anywhere" in options and "priorities" in options and "last" in options
assert method_of("last+longest-name", 1).name == "last+longest-name"
network = network_of(fabric)
assert isinstance(scheduler("idle", network), FairSharing)
client, *hosts = sorted(network.hosts)
selector = Selector(network, "last", "longest-name", Random(1))
request = SelectionRequest(client, tuple(map(Replica, hosts)), 8e6, 1)
chosen = selector.select(request, 0.0)
assert chosen.replica.host == hosts[-1] and chosen.path == network.shortest_paths(hosts[-1], client)[-1]
"""


def test_a_policy_that_is_registered_is_offered_everywhere() -> None:
    """In a process of its own: what is offered is fixed when the modules are imported."""
    done = subprocess.run([sys.executable, "-c", NEW_POLICIES], capture_output=True, text=True, timeout=120, cwd=ROOT,
                          check=False)
    assert done.returncode == 0, done.stderr


def test_every_policy_can_be_made() -> None:
    network = network_with("l0 l1 s0", "a b", "a-l0 b-l1 l0-s0 l1-s0")
    paths = network.shortest_paths("a", "b")
    for policy in POLICIES.of(Kind.REPLICA):
        if policy.name not in ("mayflower", "mayflower-plus", "mayflower-srpt"):
            assert hasattr(POLICIES.make(Kind.REPLICA, policy.name, network, list, Random(1)), "choose")
    for policy in POLICIES.of(Kind.PATH):
        (path,) = POLICIES.make(Kind.PATH, policy.name, paths, FiveTuple("a", "b", 6, 1, 2))
        assert isinstance(path, NetworkPath)
    for policy in POLICIES.of(Kind.COFLOW):
        assert isinstance(POLICIES.make(Kind.COFLOW, policy.name, network, 0.0), CoflowScheduler)
    for policy in POLICIES.of(Kind.PLACEMENT):
        request = PlacementRequest("a", 8e6, (Candidate("a", "0"), Candidate("b", "1")), replicas=2)
        placed = POLICIES.make(Kind.PLACEMENT, policy.name, network, Random(1), MeasuredBy.SWITCHES).place(
            "file", request, 0.0)
        assert [destination.host for destination in placed.destinations] == ["a", "b"]
    for policy in POLICIES.of(Kind.TIMESLICES):
        assert POLICIES.make(Kind.TIMESLICES, policy.name, network, 0.01).backlogged("a", ["b"], 0.0) == {
            "a": {"b": 10e6}}


def test_the_documentation_names_every_policy() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    table = (ROOT / "docs" / "reference" / "policies.md").read_text()
    for kind in Kind:
        for policy in POLICIES.of(kind):
            assert f"`{policy.name}`" in pages, policy.name
            assert f"| `{policy.name}` | {policy.help} | {policy.source} |" in table, policy.name


def test_names_are_had_once_and_unknown_ones_are_told_with_the_known() -> None:
    registry = PolicyRegistry()
    registry.register(Policy(Kind.PATH, "one", "", ""))
    registry.register(Policy(Kind.COFLOW, "one", "", ""))
    with pytest.raises(InvalidPolicy, match="'one' already"):
        registry.register(Policy(Kind.PATH, "one", "", ""))
    registry.register(Policy(Kind.PATH, "other", "", ""))
    with pytest.raises(UnknownPolicy, match="path policy 'third' is not one of one, other"):
        registry.get(Kind.PATH, "third")
    with pytest.raises(UnknownPolicy, match="together with the path"):
        registry.make(Kind.PATH, "one")
    assert (registry.default(Kind.PATH), registry.choices(Kind.PATH)) == ("one", "one (default) or other")
    assert registry.choices(Kind.COFLOW) == "one (default)"


def test_naming_policies_imports_nothing_that_computes() -> None:
    done = subprocess.run([sys.executable, "-c", "import sys, speedwell.controller.policy.registry; "
                           "print([name for name in ('numba', 'numpy', 'networkx') if name in sys.modules])"],
                          capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
