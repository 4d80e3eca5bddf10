"""What the controller's coflow policies compute with is compiled before the first coflow comes."""

import subprocess
import sys

PLAY = """
from numba.core.dispatcher import Dispatcher
from controller.coflow_policies import SCHEDULERS, compile_policy
from controller.policy import coflow_kernels
from controller.policy.coflow import Coflow, CoflowFlow
from sim.fabric_network import network_of
from topo.fabric import spine_leaf

kernels = [each for each in vars(coflow_kernels).values() if isinstance(each, Dispatcher)]
assert kernels
for name in SCHEDULERS:
    compile_policy(name)
    before = [kernel.signatures for kernel in kernels]
    network = network_of(spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=1e9, oversubscription=1))
    near, other, far, _ = network.hosts
    scheduler = SCHEDULERS[name](network, 0.0)
    scheduler.coflow_arrived(Coflow("a", (CoflowFlow(1, near, far, 1e8), CoflowFlow(2, other, far, 2e8)), 0.0), 0.0)
    scheduler.coflow_arrived(Coflow("b", (CoflowFlow(3, near, far, 1e7),), 1.0), 1.0)
    scheduler.progress(1, 5e7, 1.5)
    scheduler.correct(1, 1.6)
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
