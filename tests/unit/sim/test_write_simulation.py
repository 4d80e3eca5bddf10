"""Replicated writes in the simulator: durations that can be computed by hand, and the shuffle of a trace."""

import math
from random import Random

import numpy as np
import pytest

from speedwell.controller.policy.placements.rack_aware import HdfsPlacement
from speedwell.controller.policy.placements.sinbad import Sinbad
from speedwell.controller.policy.placements.sinbad_plus import SinbadPlus
from speedwell.sim.coflow_trace import Coflow, CoflowTrace, FairRates, fair_rates, run_fair
from speedwell.sim.errors import InvalidWorkload
from speedwell.sim.fabric_network import network_of
from speedwell.sim.write_simulation import WriteSettings, WriteSimulation, Written
from speedwell.sim.write_workload import Writer, Writes, WriteWorkload, writes_of
from speedwell.topo.fabric import spine_leaf

RACKS, HOST_BPS, RACK_BPS = 4, 100e6, 100e6
FABRIC = spine_leaf(leaves=RACKS, spines=1, hosts_per_leaf=4, host_bps=HOST_BPS, oversubscription=4.0)
BLOCK_BITS = 100e6


def write(policy: type, writers: list[Writer], settings: WriteSettings,
          shuffle: dict[int, float] | None = None) -> Written:
    """`shuffle` has what ports carry all the time: rack's number up, number + RACKS down."""
    rates = np.zeros((2000, 2 * RACKS))
    for port, rate_bps in (shuffle or {}).items():
        rates[:, port] = rate_bps
    network = network_of(FABRIC)
    simulation = WriteSimulation(FABRIC, network, policy(network, Random(1)), settings, 1)
    return simulation.run(Writes(tuple(writers), FairRates(rates, {}), {}))


def writer(rack: int, blocks: int = 1, host: int = 0, start: float = 0.0) -> Writer:
    return Writer(1, start, rack, host, (BLOCK_BITS,) * blocks)


@pytest.mark.parametrize("policy", [HdfsPlacement, Sinbad, SinbadPlus])
def test_a_chain_has_the_rate_of_its_tightest_link_or_disk(policy: type) -> None:
    block, = write(policy, [writer(0)], WriteSettings(disk_bps=math.inf)).blocks
    assert block.seconds == pytest.approx(1.0)
    block, = write(policy, [writer(0)], WriteSettings(disk_bps=25e6)).blocks
    assert block.seconds == pytest.approx(4.0)


def test_blocks_of_a_writer_come_one_after_the_other() -> None:
    first, second = write(Sinbad, [writer(0, blocks=2)], WriteSettings(disk_bps=math.inf)).blocks
    assert (first.asked, second.asked) == (0.0, pytest.approx(1.0))


@pytest.mark.parametrize("policy", [Sinbad, SinbadPlus])
def test_replicas_keep_off_racks_that_the_shuffle_fills(policy: type) -> None:
    busy = {RACKS + rack: 0.9 * RACK_BPS for rack in (1, 2)}
    blocks = write(policy, [writer(0, blocks=8, start=3.0)], WriteSettings(disk_bps=math.inf), busy).blocks
    assert {host[:2] for block in blocks for host in block.hosts} == {"r0", "r3"}
    assert max(block.seconds for block in blocks) == pytest.approx(1.0)


def test_a_source_that_limits_nothing_does_so_for_the_bound_only() -> None:
    full = {0: 0.9 * RACK_BPS}
    slow, = write(Sinbad, [writer(0, start=3.0)], WriteSettings(disk_bps=50e6), full).blocks
    fast, = write(Sinbad, [writer(0, start=3.0)], WriteSettings(disk_bps=50e6, free_sources=True), full).blocks
    assert (slow.seconds, fast.seconds) == (pytest.approx(10.0), pytest.approx(2.0))


def test_destinations_that_limit_nothing_leave_the_way_up_and_the_first_disk() -> None:
    settings = WriteSettings(disk_bps=50e6, free_destinations=True)
    busy = {RACKS + rack: 0.9 * RACK_BPS for rack in range(1, RACKS)}
    assert write(Sinbad, [writer(0, start=3.0)], settings, busy).blocks[0].seconds == pytest.approx(2.0)
    full = {0: 0.9 * RACK_BPS}
    assert write(Sinbad, [writer(0, start=3.0)], settings, full).blocks[0].seconds == pytest.approx(10.0)


def test_imbalance_is_looked_at_while_writers_begin() -> None:
    written = write(Sinbad, [writer(0), writer(1, blocks=30, start=4.0)], WriteSettings(disk_bps=25e6))
    assert len(written.cv_up) == len(written.cv_down) == len(written.busiest_over_mean) == 5


def test_a_writer_that_may_start_elsewhere_does_and_stays_there() -> None:
    full = {0: 0.9 * RACK_BPS}
    blocks = write(SinbadPlus, [writer(0, blocks=3, start=3.0)], WriteSettings(disk_bps=50e6, sources=6), full).blocks
    assert max(block.seconds for block in blocks) == pytest.approx(2.0)
    assert len({block.hosts[0] for block in blocks}) == 1 and blocks[0].hosts[0][:2] != "r0"


def test_requests_wait_for_the_end_of_the_quantum_and_smaller_ones_go_first() -> None:
    blocks = write(Sinbad, [writer(0, start=0.25), writer(1, start=0.75)],
                   WriteSettings(disk_bps=math.inf, quantum_seconds=1.0)).blocks
    assert [block.seconds for block in blocks] == [pytest.approx(1.75), pytest.approx(1.25)]


def trace() -> CoflowTrace:
    return CoflowTrace(2, (Coflow(1, 0.0, (0,), ((1, 300e6),)), Coflow(2, 1.0, (0,), ((1, 100e6), (0, 50e6)))))


def test_the_shuffle_second_by_second_is_what_the_whole_run_is() -> None:
    rates = fair_rates(trace(), 100e6, 6)
    assert rates.rates_bps.sum(axis=0) == pytest.approx([450e6, 0.0, 50e6, 400e6])
    assert rates.rates_bps[0] == pytest.approx([100e6, 0.0, 0.0, 100e6])
    ends = run_fair(trace(), 100e6).completion_seconds
    assert max(rates.finished_seconds[2, 1], rates.finished_seconds[2, 0]) == pytest.approx(1.0 + ends[2])
    assert fair_rates(trace(), 100e6, 1).finished_seconds == {}


def test_a_reducer_writes_what_it_puts_out_in_blocks() -> None:
    workload = WriteWorkload(window_seconds=10.0, shuffle_bps=100e6, output_share=0.5, block_bytes=8e6,
                             least_block_bytes=4e6, writers_per_rack=2)
    writes = writes_of(trace(), workload, Random(1))
    assert [sum(sum(each.blocks_bits) for each in writes.writers if each.job == job) for job in (1, 2)] \
        == [pytest.approx(128e6), pytest.approx(50e6)]       # rests below the least are not asked for
    assert {each.rack for each in writes.writers} == {1}
    ends = fair_rates(trace(), 100e6, 10).finished_seconds
    assert all(each.start <= ends[each.job, each.rack] for each in writes.writers)
    assert min(each.start for each in writes.writers if each.job == 2) >= 1.0


def test_a_workload_that_means_nothing_is_refused() -> None:
    with pytest.raises(InvalidWorkload, match="output_share"):
        WriteWorkload(output_share=0.0)
