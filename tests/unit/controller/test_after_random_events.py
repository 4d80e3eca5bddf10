"""Whatever came and went: what stays is what a controller that starts anew makes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import eventlet
import pytest

from speedwell.coflow.report import Flow
from speedwell.controller.coflows.api import CLAIMANT as COFLOWS
from speedwell.controller.coflows.book import _five_tuple
from speedwell.controller.policy.registry import POLICIES, Kind
from speedwell.controller.reads.scheduler import CLAIMANT as READS
from speedwell.controller.switches.entries import GROUP_ANY, FlowEntry, LoadLabel, ToGroup
from speedwell.controller.switches.layout import Priority, Table
from speedwell.controller.tables.entries import block_of_cookie
from speedwell.topo.fabric import Fabric, spine_leaf, three_tier
from tests.unit.controller.house import House, Life
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated

FABRICS: list[Fabric] = [
    spine_leaf(leaves=3, spines=2, hosts_per_leaf=2),
    three_tier(pods=2, racks_per_pod=2, hosts_per_rack=1, aggregations_per_pod=2, cores=2),
]
EVENTS = 200
REST_SECONDS = 150
"""The audit comes round twice."""
OURS = ("speedwell.controller.", "speedwell.coflow.")


class Chaos:
    """Lets something happen to a house, two hundred times."""

    def __init__(self, house: House, random: Random) -> None:
        self.house, self.random = house, random
        self.history: list[str] = []

    def step(self) -> None:
        kinds: list[Callable[[], str | None]] = [
            *5 * [self.read], *3 * [self.end_read], *4 * [self.coflow], *3 * [self.end_coflow], *3 * [self.link],
            *3 * [self.host], *2 * [self.move], *2 * [self.connection], self.power, self.slow, self.announce]
        if self.random.random() < 0.02:
            kinds = [self.controller]
        what = self.random.choice(kinds)()
        self.history.append(f"{self.house.hub.now:.3f} {what}")
        eventlet.sleep(self.random.choice([0.001, 0.01, 0.05, 0.3, 1.0, 3.0]))

    def _pair(self) -> list[str]:
        return self.random.sample(sorted(self.house.network.hosts), 2)

    def read(self) -> str:
        client, *replicas = self.random.sample(sorted(self.house.network.hosts), 3)
        if self.random.random() < 0.1:
            replicas = [client]
        eventlet.spawn(self.house.read, client, replicas, self.random.choice([1, 1, 2]))
        return f"read {client} {replicas}"

    def end_read(self) -> str:
        if self.house.reads:
            eventlet.spawn(self.house.end_read, self.random.choice(list(self.house.reads)))
        return "end read"

    def coflow(self) -> str:
        if self.random.random() < 0.3 and (flows := self._unreported()):
            self.house.report_flows([self.random.choice(flows)])
            return "coflow of a read"
        pairs = [tuple(self._pair()) for _ in range(self.random.choice([1, 2, 4]))]
        self.house.report(pairs)
        return f"coflow {pairs}"

    def _unreported(self) -> list[Flow]:
        """The connections of reads that are not a coflow's yet."""
        reported = {flow for flows in self.house.reported.values() for flow in flows}
        connections = [part.five_tuple for read in self.house.reads.values() for part in read.parts
                       if part.is_flow and not part.ended]
        return [flow for each in connections if (flow := Flow(
            each.source, each.destination, each.source_port, each.destination_port)) not in reported]

    def end_coflow(self) -> str:
        if self.house.reported:
            self.house.end_coflow(self.random.choice(list(self.house.reported)), self.random.random() < 0.7)
        return "end coflow"

    def link(self) -> str:
        dead = [(a, b) for a, b in self.house.fabric_links if frozenset((a, b)) in self.house.network.dead]
        is_up = len(dead) > self.random.randrange(4)
        a, b = self.random.choice(dead if is_up else self.house.fabric_links)
        self.house.set_link(a, b, is_up)
        return f"link {a} {b} {is_up}"

    def host(self) -> str:
        empty = [place for place, host in sorted(self.house.places.items()) if host is None]
        if len(empty) > self.random.randrange(2):
            place = self.random.choice(empty)
            absent = sorted(self.house.network.hosts.keys() - set(filter(None, self.house.places.values())))
            self.house.set_place(place, self.random.choice(absent))
        else:
            place = self.random.choice(sorted(self.house.places))
            self.house.set_place(place, None)
        return f"host {place} {self.house.places[place]}"

    def move(self) -> str:
        empty = [place for place, host in sorted(self.house.places.items()) if host is None]
        taken = [place for place, host in sorted(self.house.places.items()) if host is not None]
        if not empty or not taken:
            return "no move"
        source, destination = self.random.choice(taken), self.random.choice(empty)
        host = self.house.places[source]
        self.house.set_place(source, None)
        self.house.set_place(destination, host)
        return f"move {source} {destination}"

    def announce(self) -> str:
        self.house.announce(place := self.random.choice(sorted(self.house.places)))
        return f"announce {place}"

    def connection(self) -> str:
        dpid = self.random.choice(sorted(self.house.switches))
        self.house.disconnect(dpid)
        eventlet.spawn_after(self.random.choice([0.01, 1, 8]), self.house.connect, dpid)
        return f"connection {dpid}"

    def power(self) -> str:
        dpid = self.random.choice(sorted(self.house.switches))
        self.house.switch_off(dpid)
        eventlet.spawn_after(self.random.choice([2, 8]), self.house.switch_on, dpid)
        return f"power {dpid}"

    def slow(self) -> str:
        dpid = self.random.choice(sorted(self.house.switches))
        self.house.silence(dpid, self.random.choice([1.0, 3.0, 12.0]))
        return f"slow {dpid}"

    def controller(self) -> str:
        self.house.restart_controller()
        return "controller restarts"

    def make_well(self) -> None:
        """Everything is where it was in the beginning; what is read and reported goes on, but for reads of earlier
        controllers."""
        eventlet.sleep(10)
        house = self.house
        house.moving -= house.orphans
        for a, b in house.fabric_links:
            house.set_link(a, b, True)
        moved = [place for place, host in house.places.items() if host != place]
        for place in moved:
            house.set_place(place, None)
        eventlet.sleep(3)
        for place in moved:
            house.set_place(place, place)
        for dpid in house.switches:
            house.switch_on(dpid)
        eventlet.sleep(20)
        for _ in range(3):
            self.read()
            self.coflow()
        eventlet.sleep(40)

    def end_everything(self) -> None:
        for read_id in list(self.house.reads):
            self.house.end_read(read_id)
        for coflow_id in list(self.house.reported):
            self.house.end_coflow(coflow_id, True)
        self.house.moving.clear()


def come_to_rest(house: House) -> None:
    """Hosts make themselves known, something is read and reported, and all of it ends."""
    eventlet.sleep(30)
    for place in house.places:
        house.announce(place)
    eventlet.sleep(5)
    first, second, *_ = sorted(house.network.hosts)
    house.report([(first, second)])
    house.read(first, [second], 1)
    eventlet.sleep(5)
    house.end_coflow(*house.reported, True)
    house.end_read(*house.reads)
    eventlet.sleep(REST_SECONDS)
    while house.life.state.confirmations._batches:
        eventlet.sleep(0.01)


def problems_in_flight(house: House) -> list[str]:
    """Where the books, the policies and the switches differ about what is read and reported now."""
    life, problems = house.life, []

    def compare(what: str, one: Any, other: Any) -> None:
        if one != other:
            problems.append(f"{what}: {one} instead of {other}")

    records = list(life.forwarding.records)
    for dpid, switch in house.switches.items():
        placements = [record.placement for record in records if record.placement and record.placement.dpid == dpid]
        compare(f"entries at {dpid}", {entry.key: entry for entry in switch.flows.values()
                                       if entry.priority == Priority.EXPLICIT_PATH},
                {placement.entry.key: placement.entry for placement in placements})
        compare(f"meters at {dpid}", switch.meters,
                {placement.meter.meter_id: placement.meter for placement in placements if placement.meter})
    flows = life.reads.flows()
    compare("the model of reads", {flow.flow_id: flow.path for flow in life.flowserver.model().values()},
            {part.flow_id: part.path for part in flows})
    compare("paths of reads", {part.five_tuple: part.path for part in flows},
            {record.five_tuple: record.path for record in records if READS in record.claims})
    book = life.coflows.book
    compare("coflows in the book", {flow for coflow in book for flow in coflow.flows},
            {_five_tuple(flow) for flows in house.reported.values() for flow in flows})
    compare("coflows in the switches", set(book.enforced),
            {record.five_tuple for record in records if COFLOWS in record.claims})
    return problems


def run_house(seed: int, patch: pytest.MonkeyPatch, directory: Path) -> None:
    """Two hundred events; then compared with the next life on the same switches, and with the first on new ones."""
    def scenario(hub: SimulatedHub) -> None:
        policies = POLICIES.names(Kind.COFLOW)
        policy = policies[seed // len(FABRICS) % len(policies)]
        aged = House(hub, patch, directory, FABRICS[seed % len(FABRICS)], seed, policy)
        chaos = Chaos(aged, Random(seed))
        eventlet.sleep(5)
        for place in aged.places:
            aged.announce(place)
        eventlet.sleep(5)
        for _ in range(EVENTS):
            chaos.step()
        print(f"seed {seed}, fabric {aged.network.fabric.name}, {policy}", *chaos.history, sep="\n")
        chaos.make_well()
        require_none(problems_in_flight(aged))
        chaos.end_everything()
        come_to_rest(aged)
        found, before = report_of(aged), held(aged)
        aged.restart_controller()
        eventlet.sleep(REST_SECONDS)
        require_none(differences(held(aged), before))
        aged.end()
        require_none(aged.failures)
        new = House(hub, patch, directory, aged.network.fabric, seed, policy)
        come_to_rest(new)
        require_none(differences(found, report_of(new)))
        new.end()

    run_simulated(scenario)


def require_none(problems: list[str]) -> None:
    assert not problems, "\n".join(["", *problems])


def report_of(house: House) -> dict[str, Any]:
    return {"switches": renumbered(house), "sizes": sizes(house.life), "gauges": house.life.gauges()}


def renumbered(house: House) -> dict[str, Any]:
    """What the switches hold, each label by what it stands for and each group by what it does."""
    blocks: dict[range, str] = {}
    for dpid, switch in house.switches.items():
        for entry in switch.flows.values():
            if entry.table == Table.LABELS and entry.goto == Table.UNLABEL:
                base, bits = block_of_cookie(entry.cookie)
                blocks[range(base, base + (1 << bits))] = dpid

    def label(number: int) -> Any:
        return next(((dpid, len(labels), number - labels.start) for labels, dpid in blocks.items()
                     if number in labels), ("nobody's", number))

    def action(switch: Any, each: Any) -> Any:
        if isinstance(each, ToGroup):
            return group(switch, each.group_id)
        return ("load", label(each.label), each.traffic_class) if isinstance(each, LoadLabel) else each

    def group(switch: Any, number: int) -> Any:
        held = switch.groups[number]
        return held.is_failover, tuple((
            bucket.watch_port_no, bucket.watch_group_id != GROUP_ANY and group(switch, bucket.watch_group_id),
            tuple(action(switch, each) for each in bucket.actions)) for bucket in held.buckets)

    def entry_of(switch: Any, entry: FlowEntry) -> Any:
        matching = tuple((name, label(value) if name == "mpls_label" else value) for name, value in entry.match)
        return (entry.table, entry.priority, matching, tuple(action(switch, each) for each in entry.actions),
                entry.goto, entry.cookie >> 48, entry.meter_id, entry.idle_timeout_seconds,
                entry.hard_timeout_seconds)

    return {dpid: {"entries": Counter(entry_of(switch, entry) for entry in switch.flows.values()),
                   "groups": Counter(group(switch, number) for number in switch.groups),
                   "meters": switch.meters, "packet meters": switch.packet_meters}
            for dpid, switch in house.switches.items()}


AGED = (
    "ShareTable._free", "MeterIds._free", "_Rows._free",      # numbers to be given out again
    "Network._capacity_bps", "Network._gone", "Network._index",         # numbers of links that went
    "Network._predecessors", "Network._switch_paths",                   # what was looked up
    "_Fabric.",         # the same, for one version of the network
    "TablePlanner._found", "SwitchGroups._found", "SwitchTables.", "CurrentEntries._entries",
    "InstalledTables._sent",            # switches that came back and lacked nothing
    "LinkEstimate._ramps",      # for as long as a read or a write should have taken
    "Refusals.", "NetworkState.host_ports")
"""What may be more or less after a longer life: it is bounded, and nothing follows from it."""


def sizes(life: Life) -> dict[str, int]:
    """How much each container holds that any object of the controller has."""
    found: Counter[str] = Counter()
    seen: set[int] = set()

    def look(name: str, value: Any) -> None:
        if isinstance(value, (dict, set, frozenset, list, tuple, deque)):
            found[name] += len(value)
            for each in value.values() if isinstance(value, dict) else value:
                look(f"{name}[]", each)
        elif type(value).__name__ in ("FlowEntry", "Bucket", "Group"):
            return
        elif type(value).__module__.startswith(OURS) and id(value) not in seen:
            seen.add(id(value))
            slots = [slot for each in type(value).__mro__ for slot in getattr(each, "__slots__", ())]
            held = {slot: getattr(value, slot, None) for slot in slots} | getattr(value, "__dict__", {})
            for key, each in held.items():
                look(f"{type(value).__name__}.{key}", each)

    for name in ("state", "packet_ins", "reads", "measurements", "apps"):
        look(name, getattr(life, name))
    return {name: number for name, number in found.items()
            if number and not name.startswith(AGED)}


def held(house: House) -> dict[str, Any]:
    """What the switches hold, as it is."""
    return {dpid: {"flows": dict(switch.flows), "groups": dict(switch.groups), "meters": dict(switch.meters),
                   "packet meters": dict(switch.packet_meters)}
            for dpid, switch in house.switches.items()}


def differences(one: dict[str, Any], other: dict[str, Any], where: str = "") -> list[str]:
    """What is not the same in two reports."""
    found = []
    for key in one.keys() | other.keys():
        a, b = one.get(key), other.get(key)
        if a == b:
            continue
        if isinstance(a, dict) and isinstance(b, dict) and not isinstance(a, Counter):
            found += differences(a, b, f"{where}/{key}")
        else:
            if isinstance(a, Counter) and isinstance(b, Counter):
                a, b = a - b, b - a
            found.append(f"{where}/{key}: {a} instead of {b}")
    return sorted(found)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(40))
def test_after_two_hundred_random_events_all_is_as_a_controller_that_starts_anew_makes_it(
        seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The order of sets has its part in what happens: give PYTHONHASHSEED to see the same again."""
    run_house(seed, monkeypatch, tmp_path)


def test_a_difference_is_told_by_where_it_is() -> None:
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}) == ["/a/c: 2 instead of 3"]
