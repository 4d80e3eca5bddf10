"""Coflow traces on one big switch, where only the racks' ports limit flows: what others publish results of.

The controller's own policies decide, and `CoflowSimulation` runs what they decide, as on a fabric.
"""

from collections.abc import Callable

from speedwell.controller.policy.coflows.coflow import BITS_PER_BYTE, Coflow, CoflowFlow, CoflowScheduler
from speedwell.controller.policy.coflows.live_coflows import TableScheduler
from speedwell.controller.policy.network.graph import Network
from speedwell.sim.coflow_simulation import CoflowSimulation, Enforcement
from speedwell.sim.coflow_trace import Coflow as TraceCoflow
from speedwell.sim.coflow_trace import CoflowTrace

NEVER_SECONDS = 1e9


def run(trace: CoflowTrace, port_bps: float, make: Callable[[Network], CoflowScheduler], often: bool = False,
        ) -> dict[int, float]:
    """Completion times in seconds by coflow number; decisions take no time, and ports have the policy's
    queues, with strict priorities.

    As in coflowsim and Ximulator decisions are at arrivals and ends of coflows, by the rates given before. With
    `often` there are reports each second, and decisions at these and at ends of flows too.
    """
    network = _switch(trace.racks, port_bps)
    scheduler = make(network)
    if isinstance(scheduler, TableScheduler) and not often:
        scheduler.decides_often = False
    enforcement = Enforcement(decision=0.0, report_interval=1.0 if often else NEVER_SECONDS, hosts_enforce=True,
                              least_share=0.0)
    ended = CoflowSimulation(network, scheduler, enforcement).run([_coflow(each) for each in trace.coflows])
    return {coflow.number: ended[coflow.number] for coflow in trace.coflows}


def _switch(racks: int, port_bps: float) -> Network:
    """A rack's mappers and reducers are hosts of their own, as its port carries both directions at once."""
    network = Network()
    network.add_switch("switch")
    for rack in range(racks):
        for host in (f"m{rack}", f"r{rack}"):
            network.add_host(host)
            network.add_link(host, "switch", port_bps)
            network.add_link("switch", host, port_bps)
    return network


def _coflow(coflow: TraceCoflow) -> Coflow:
    mappers = coflow.mapper_racks
    pairs = [(mapper, reducer, bits / len(mappers)) for reducer, bits in coflow.reducers for mapper in mappers]
    return Coflow(coflow.number, tuple(
        CoflowFlow((coflow.number, place), f"m{mapper}", f"r{reducer}", bits / BITS_PER_BYTE)
        for place, (mapper, reducer, bits) in enumerate(pairs)), coflow.arrival_seconds)
