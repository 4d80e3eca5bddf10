"""The bound that knows the future: by hand, and below what any policy gives."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.sim.clairvoyant import clairvoyant_mean_seconds
from speedwell.sim.simulation import Delays, Simulation
from speedwell.sim.workload import Read
from speedwell.topo.fabric import three_tier

MBPS = 1e6
RATE = 100 * MBPS
FABRIC = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=4, host_bps=RATE)
NO_DELAYS = Delays(decision=0.0, notice=0.0, division=0.0)


def read(arrival: float, client: str, replicas: str, megabits: float = 200) -> Read:
    return Read(arrival, client, tuple(replicas.split()), megabits * MBPS)


def test_one_clients_reads_come_in_one_by_one() -> None:
    """2 s each: the first ends after 2 s, the second, asked for at 1 s, 3 s after that."""
    reads = [read(0.0, "p0r0h0", "p0r0h1"), read(1.0, "p0r0h0", "p0r0h2")]
    assert clairvoyant_mean_seconds(reads, RATE) == pytest.approx((2 + 3) / 2)


def test_many_clients_of_one_host_share_its_link() -> None:
    """Four reads of 2 s leave one link in 8 s: their middles are at 1, 3, 5 and 7 s, their ends 1 s later or more."""
    reads = [read(0.0, f"p0r1h{number}", "p0r0h0") for number in range(4)]
    assert clairvoyant_mean_seconds(reads, RATE) == pytest.approx((1 + 3 + 5 + 7) / 4 + 1)


def test_three_replicas_are_three_times_as_wide() -> None:
    """Six reads of 2 s leave three links in 4 s: middles from 1/3 s on every 2/3 s, and half of 2 s each."""
    reads = [read(0.0, f"p1r{number % 2}h{number // 2}", "p0r0h0 p0r0h1 p0r1h0") for number in range(6)]
    assert clairvoyant_mean_seconds(reads, RATE) == pytest.approx(2 + 1)


def test_a_shorter_read_goes_first_on_the_holders_links() -> None:
    """400 Mbit from 0 s, 100 Mbit at 1 s. On one link: 1 + 3 of the long read's 4 s around 1 s of the short one."""
    reads = [read(0.0, f"p0r1h{number}", "p0r0h0", megabits)
             for number, megabits in enumerate((400, 400, 400))] + [read(1.0, "p0r1h3", "p0r0h0", 100)]
    long_middles = (0.5 * 100 + 3.5 * 300) / 400, 7.0, 11.0
    expected = (sum(long_middles) + 3 * 2 + (1.5 - 1) + 0.5) / 4
    assert clairvoyant_mean_seconds(reads, RATE) == pytest.approx(expected)


HOSTS = [host.name for host in FABRIC.hosts]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_policy_is_below_it(data: st.DataObject) -> None:
    holders = data.draw(st.lists(st.permutations(HOSTS).map(lambda hosts: tuple(hosts[:2])), min_size=1, max_size=2))
    reads, now = [], 0.0
    for _ in range(data.draw(st.integers(1, 12))):
        now += data.draw(st.floats(0, 2))
        hosts = data.draw(st.sampled_from(holders))
        client = data.draw(st.sampled_from([host for host in HOSTS if host not in hosts]))
        reads.append(Read(now, client, hosts, data.draw(st.sampled_from([50, 200, 200, 700])) * MBPS))
    bound = clairvoyant_mean_seconds(reads, RATE)
    for policy in ("mayflower", "mayflower-plus"):
        run = Simulation(FABRIC, policy, "mayflower", Random(1), parts=2, delays=NO_DELAYS)
        outcomes = run.run(iter(reads), len(reads))
        assert bound <= sum(outcome.seconds for outcome in outcomes) / len(reads) + 1e-6
