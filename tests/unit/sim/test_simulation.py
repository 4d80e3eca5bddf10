from itertools import islice, product
from random import Random

import pytest

from speedwell.controller.policy.errors import UnknownPolicy
from speedwell.sim.clairvoyant import clairvoyant_mean_seconds
from speedwell.sim.errors import InvalidSetting, InvalidWorkload, Overloaded
from speedwell.sim.simulation import Delays, Outcome, Simulation
from speedwell.sim.workload import Read, Workload, generate
from speedwell.topo.fabric import Fabric, three_tier

MBPS = 1e6
FABRIC = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=4, host_bps=100 * MBPS)
SMALL = Workload(reads_per_server_second=0.05, files=50, read_bits=200 * MBPS)


def simulation(replica_policy: str = "mayflower", path_policy: str = "mayflower", **settings: object) -> Simulation:
    return Simulation(FABRIC, replica_policy, path_policy, Random(1), **settings)  # type: ignore[arg-type]


def run(number: int, workload: Workload = SMALL, fabric: Fabric = FABRIC, **settings: object) -> list[Outcome]:
    policies = {"replica_policy": "mayflower", "path_policy": "mayflower"} | settings
    run = Simulation(fabric, generator=Random(1), **policies)  # type: ignore[arg-type]
    return run.run(generate(workload, fabric, Random(2)), number)


@pytest.mark.parametrize(("replica_policy", "path_policy"), [
    ("mayflower-plus", "mayflower"),
    *product(["mayflower", "nearest", "sinbad-r", "sinbad-r-estimate", "sinbad-r-measured", "random", "hdfs",
               "power-of-two-choices"],
             ["mayflower", "ecmp"]),
])
def test_reads_end_under_every_policy_and_never_before_the_network_allows(
    replica_policy: str, path_policy: str
) -> None:
    outcomes = run(150, replica_policy=replica_policy, path_policy=path_policy)

    assert len(outcomes) == 150
    for outcome in outcomes:
        assert outcome.seconds >= 2.0 + Delays().decision - 1e-6
        assert set(outcome.sources) <= set(outcome.read.replicas)
    reads = [outcome.read for outcome in outcomes]
    assert clairvoyant_mean_seconds(reads, 100 * MBPS) <= sum(outcome.seconds for outcome in outcomes) / 150


def test_a_run_is_the_same_again_for_the_same_seed() -> None:
    first, second = run(200, replica_policy="sinbad-r"), run(200, replica_policy="sinbad-r")

    assert [(outcome.seconds, outcome.sources) for outcome in first] == [
        (outcome.seconds, outcome.sources) for outcome in second]


def test_a_lone_read_takes_its_size_over_the_rate_and_the_delay_of_the_decision() -> None:
    reads = [Read(0.0, "p0r0h0", ("p0r0h1",), 200 * MBPS)]

    (outcome,) = simulation(delays=Delays(decision=0.25)).run(iter(reads), 1)

    assert outcome.seconds == pytest.approx(2.25)


def test_switches_are_read_one_after_the_other_and_the_selector_hears_of_all_when_the_last_has_answered() -> None:
    run = simulation(delays=Delays(poll_interval=1.0, poll_spread=0.5, poll=0.0))
    told: dict[str, tuple[float, float]] = {}
    links: dict[tuple[str, str], float] = {}
    run.selector.flow_measured = (      # type: ignore[method-assign]
        lambda flow_id, moved_bytes, rate_bps, now: told.setdefault(flow_id, (now, 8 * moved_bytes / MBPS)))
    run.selector.link_measured = lambda link, rate_bps, now: links.setdefault(link, rate_bps)   # type: ignore[method-assign]
    run.run(iter([Read(0.5, "p0r0h0", ("p0r0h1",), 250 * MBPS), Read(0.5, "p1r1h0", ("p1r1h1",), 250 * MBPS)]), 2)

    (one_at, first_megabits), (other_at, second_megabits) = told.values()
    assert one_at == other_at
    assert second_megabits > first_megabits + 5, "read later, so it has moved more"
    read_at = 0.5 + Delays().decision + second_megabits / 100
    assert links["p1r1h1", "edge-p1r1"] * read_at == pytest.approx(second_megabits * MBPS, rel=1e-3)


def test_counters_reach_the_selector_only_with_the_poll_after_them() -> None:
    run = simulation(delays=Delays(poll_interval=1.0, poll_spread=0.0, poll=0.1))
    seen: list[tuple[float, float]] = []
    measured = run.selector.flow_measured

    def listen(flow_id: str, transferred_bytes: int, rate_bps: float, now: float) -> None:
        seen.append((now, 8 * transferred_bytes / MBPS))
        measured(flow_id, transferred_bytes, rate_bps, now)

    run.selector.flow_measured = listen  # type: ignore[method-assign]
    run.run(iter([Read(0.5, "p0r0h0", ("p0r0h1",), 250 * MBPS)]), 1)

    assert [now for now, _ in seen] == pytest.approx([1.1, 2.1])
    assert [megabits for _, megabits in seen] == pytest.approx([49.8, 149.8], abs=0.01)


def test_the_selector_hears_of_an_end_only_when_the_notice_arrives() -> None:
    run = simulation(delays=Delays(notice=0.5))
    reads = [Read(0.0, "p0r0h0", ("p0r0h1",), 100 * MBPS), Read(1.2, "p0r0h2", ("p0r0h1",), 100 * MBPS),
             Read(3.0, "p0r0h2", ("p0r0h1",), 100 * MBPS)]
    flows: list[int] = []
    select = run.selector.select_parts

    def listen(*arguments: object) -> object:
        flows.append(len(list(run.selector.flows())))
        return select(*arguments)  # type: ignore[arg-type]

    run.selector.select_parts = listen  # type: ignore[method-assign, assignment]
    run.run(iter(reads), 3)

    assert flows == [0, 1, 0]


def test_a_read_goes_on_over_another_path_when_a_link_fails() -> None:
    run = simulation()
    reads = [Read(0.0, "p1r0h0", ("p0r0h0",), 200 * MBPS)]
    for aggregation in ("aggregation-p0-0",):
        run.fail_link("edge-p0r0", aggregation, 0.5)
    (alone,) = simulation().run(iter(reads), 1)

    (outcome,) = run.run(iter(reads), 1)

    assert alone.seconds <= outcome.seconds <= alone.seconds + Delays().detection + 1e-6


def test_a_read_waits_for_the_only_link_to_come_back() -> None:
    run = simulation()
    run.fail_link("p0r0h0", "edge-p0r0", 0.5)
    run.restore_link("p0r0h0", "edge-p0r0", 3.5)

    (outcome,) = run.run(iter([Read(0.0, "p0r0h1", ("p0r0h0",), 100 * MBPS)]), 1)

    assert 4.0 <= outcome.seconds <= 6.5


def test_two_replicas_read_at_once_halve_the_time_where_servers_are_the_bottleneck() -> None:
    run = simulation(parts=2)
    reads = [Read(0.0, "p0r0h0", ("p0r0h1", "p0r0h2"), 100 * MBPS),
             Read(0.0, "p0r0h3", ("p0r0h1", "p0r0h2"), 100 * MBPS)]

    outcomes = run.run(iter(reads), 2)

    assert all(len(outcome.sources) in (1, 2) for outcome in outcomes)
    assert max(outcome.seconds for outcome in outcomes) == pytest.approx(1.0, abs=0.2)


def test_a_load_that_the_network_cannot_carry_is_said_instead_of_run_for_ever() -> None:
    hot = Workload(reads_per_server_second=0.4, files=2, read_bits=200 * MBPS)

    with pytest.raises(Overloaded, match=r"reads were asked for"):
        run(5000, hot, replica_policy="nearest")


def test_more_than_the_hosts_links_carry_is_refused_before_it_starts() -> None:
    with pytest.raises(InvalidWorkload, match="reads_per_server_second"):
        generate(Workload(reads_per_server_second=0.6, read_bits=200 * MBPS), FABRIC, Random(1))


@pytest.mark.parametrize("field", [{"reads_per_server_second": -1.0}, {"locality": (0.5, 0.5, 0.5)},
                                   {"read_bits": 0.0}, {"zipf_exponent": -1.0}, {"files": 0}])
def test_a_bad_workload_names_its_field(field: dict[str, object]) -> None:
    with pytest.raises(InvalidWorkload, match=next(iter(field))):
        Workload(**field)  # type: ignore[arg-type]


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="poll_interval"):
        Delays(poll_interval=0.0)
    with pytest.raises(InvalidSetting, match="parts"):
        simulation(parts=0)
    with pytest.raises(UnknownPolicy, match="closest"):
        simulation("closest")


def test_the_workload_has_the_papers_statistics() -> None:
    fabric = three_tier(pods=4, racks_per_pod=4, hosts_per_rack=4, host_bps=1e9)
    hosts = {host.name: host for host in fabric.hosts}
    reads = list(islice(generate(Workload(), fabric, Random(5)), 20000))

    assert reads[-1].arrival / 20000 == pytest.approx(1 / (64 * 0.07), rel=0.03)
    places = {"rack": 0, "pod": 0, "elsewhere": 0}
    by_file: dict[tuple[str, ...], int] = {}
    for read in reads:
        client, (first, second, third) = hosts[read.client], (hosts[name] for name in read.replicas)
        assert (second.pod, third.pod != first.pod) == (first.pod, True)
        assert second.rack != first.rack and read.client not in read.replicas
        places["rack" if client.rack == first.rack else "pod" if client.pod == first.pod else "elsewhere"] += 1
        by_file[read.replicas] = by_file.get(read.replicas, 0) + 1
    assert [places[place] / 20000 for place in places] == pytest.approx([0.5, 0.3, 0.2], abs=0.02)
    first, second, *_ = sorted(by_file.values(), reverse=True)
    assert first / second == pytest.approx(2**1.1, rel=0.1)


def test_a_read_that_waits_starts_when_its_replica_is_free_and_nothing_is_lost_or_read_twice() -> None:
    """Both want the one replica. The second starts when the first has ended, a notice and a division later."""
    reads = [Read(0.0, "p0r0h0", ("p0r0h1",), 200 * MBPS), Read(0.5, "p0r0h2", ("p0r0h1",), 200 * MBPS)]
    delays = Delays(decision=0.0, notice=0.05, division=0.1)

    first, second = simulation("mayflower-plus", delays=delays).run(iter(reads), 2)

    assert first.seconds == pytest.approx(2.0)
    assert second.finished == pytest.approx(2.0 + 0.05 + 0.1 + 2.0)


def test_a_read_is_divided_anew_when_a_replica_becomes_free_and_its_parts_end_together() -> None:
    """From p0r1h0 half of a rack's up-link would do; the replica in the rack is busy until 2 s."""
    fabric = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=4, host_bps=100 * MBPS, aggregations_per_pod=1,
                        oversubscription={"edge": 8.0, "aggregation": 1.0})
    reads = [Read(0.0, "p0r0h0", ("p0r0h1",), 200 * MBPS), Read(0.0, "p0r0h2", ("p0r0h1", "p0r1h0"), 300 * MBPS)]
    run = Simulation(fabric, "mayflower-plus", "mayflower", Random(1), parts=2,
                     delays=Delays(decision=0.0, notice=0.0, division=0.0))

    _, second = run.run(iter(reads), 2)

    # 50 Mbit/s until 2 s, then 50 + 50 as the client's link is full: 200 Mbit in 2 more seconds.
    assert second.sources == ("p0r1h0", "p0r0h1")
    assert second.finished == pytest.approx(4.0)
    assert second.part_ends == pytest.approx([4.0, 4.0])


def test_with_more_parts_no_bit_is_lost_whatever_is_divided() -> None:
    run = simulation("mayflower-plus", parts=3)
    outcomes = run.run(generate(Workload(0.2, files=20, read_bits=200 * MBPS), FABRIC, Random(2)), 300)

    assert sum(outcome.divisions for outcome in outcomes) > 50
    for outcome in outcomes:
        assert outcome.seconds >= 2.0
        # Hosts have one link each, so what a client's link has carried is what its reads asked for.
    carried = dict(zip(run.fluid.links, run.fluid.carried_bits(), strict=True))
    asked: dict[str, float] = {}
    for outcome in outcomes:
        asked[outcome.read.client] = asked.get(outcome.read.client, 0.0) + outcome.read.size_bits
    for host in FABRIC.hosts:
        link = (FABRIC.edge_switch_of(host).name, host.name)
        assert carried[link] == pytest.approx(asked.get(host.name, 0.0))
