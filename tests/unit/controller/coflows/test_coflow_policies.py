"""The controller's coflow policies: compiled before the first coflow comes, and with queues that fit them."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from speedwell.coflow.report import Flow, FlowReport
from speedwell.controller.errors import InvalidSettings
from speedwell.controller.policy.network.traffic_classes import SLICES
from speedwell.controller.settings import load_settings
from tests.unit.controller.in_process import Controller

PLAY = """
from numba.core.dispatcher import Dispatcher
from speedwell.controller.coflows.policies import compile_policy, make_scheduler
from speedwell.controller.policy.coflows import checked_kernels, coflow_kernels, coflow_order
from speedwell.controller.policy.coflows.coflow import Coflow, CoflowFlow
from speedwell.controller.policy.registry import POLICIES, Kind
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import spine_leaf

kernels = [each for module in (checked_kernels, coflow_kernels, coflow_order) for each in vars(module).values()
           if isinstance(each, Dispatcher)]
assert kernels
for name in POLICIES.names(Kind.COFLOW):
    compile_policy(name)
    before = [kernel.signatures for kernel in kernels]
    network = network_of(spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=1e9, oversubscription=1))
    near, other, far, _ = network.hosts
    scheduler = make_scheduler(name, network, 0.0)
    scheduler.coflow_arrived(Coflow("a", (CoflowFlow(1, near, far, 1e8), CoflowFlow(2, other, far, 2e8)), 0.0), 0.0)
    scheduler.coflow_arrived(Coflow("b", (CoflowFlow(3, near, far, 1e7),), 1.0), 1.0)
    scheduler.progress(1, 5e7, 1.5)
    scheduler.correct(1, 1.6)
    scheduler.again(1.7)
    scheduler.flow_finished(3, 2.0)
    scheduler.network_changed(3.0)
    scheduler.coflow_gone("a", 4.0)
    assert [kernel.signatures for kernel in kernels] == before, name
print(sum(map(len, before)))
"""


def test_no_policy_compiles_anything_once_coflows_come() -> None:
    """In a process of its own, where no other test has compiled anything."""
    done = subprocess.run([sys.executable, "-c", PLAY], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


@pytest.mark.parametrize(("policy", "queues", "needed"), [
    ("coflow-plus", "mincof", "priorities"), ("sincronia", "mincof", "priorities"),
    ("mincof", "priorities", "mincof"), ("rapier", "priorities", "mincof")])
def test_a_policy_beside_queues_that_mean_something_else_is_refused_with_the_remedy(
        policy: str, queues: str, needed: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=f'coflow_policy.*set queues = "{needed}"'):
        load_settings(coflow_policy=policy, queues=queues, coflow_key_file=tmp_path / "key")
    for fitting in (needed, "none"):
        load_settings(coflow_policy=policy, queues=fitting, coflow_key_file=tmp_path / "key")


def test_queues_without_coflows_go_with_any_policy() -> None:
    assert load_settings(queues="priorities").coflow_policy == "mincof"


@pytest.mark.parametrize(("policy", "queues", "queue", "state"), [
    ("coflow-plus", "priorities", "priority-0", "scheduled"), ("sincronia", "priorities", "priority-0", "scheduled"),
    ("mincof", "mincof", "scheduled", "scheduled"), ("fair", "none", "best-effort", "best-effort")])
def test_a_flow_shows_its_queue_by_the_name_that_the_queues_have(
        policy: str, queues: str, queue: str, state: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    controller = Controller(coflow_policy=policy, queues=queues, coflow_key_file=tmp_path / "key")
    flow = FlowReport(Flow("10.0.0.1", "10.0.1.1", 7100, 40000), 50_000_000)
    controller.coflows.book.report(b"c" * 16, [flow], time.monotonic())
    controller.coflows.plan()
    coflow = controller.ask("GET", f"/v1/coflows/{(b'c' * 16).hex()}").json
    assert (coflow["state"], [shown["queue"] for shown in coflow["members"]]) == (state, [queue])
    assert queues == "none" or queue in {each.name for each in SLICES[queues]}
