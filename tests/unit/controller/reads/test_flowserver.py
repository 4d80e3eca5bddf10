"""The flowserver's bookkeeping: whatever happens to a read, its book, the policy's model and the switches agree."""

import json
from typing import Any

import eventlet
import pytest

from speedwell.controller.coflows.api import CLAIMANT as COFLOWS
from speedwell.controller.counters.poller import EventMeasured
from speedwell.controller.errors import NoSuchPath, SwitchGone, SwitchRefused, UnknownHost
from speedwell.controller.policy.reads.selection_request import Replica
from speedwell.controller.reads import app as module
from speedwell.controller.reads import replica_search
from speedwell.controller.reads.book import Read, ReadPart, ReadRequest, UnknownRead
from speedwell.controller.reads.scheduler import CLAIMANT, EXPIRY_SLACK_SECONDS, LOCAL_READ_SECONDS, MAX_LOCAL_READS
from speedwell.controller.tables.events import AffectedPath, EventFlowsEnded, EventFlowsMoved, EventPathsChanged
from speedwell.controller.tables.flow_records import Claim, Claimant
from speedwell.controller.topology.events import EventHostChanged
from speedwell.controller.topology.state import HostLocation
from tests.unit.controller.in_process import AGGREGATIONS, EDGES, HOSTS, Controller, clocked, read_of

SOURCE, CLIENT = "10.0.0.1", "10.0.1.1"


@pytest.fixture
def controller() -> Controller:
    return Controller()


def wanted(client: str = CLIENT, port: int = 40000, replicas: tuple[str, ...] = (SOURCE,), size_bytes: int = 10 ** 7,
           **policies: str | None) -> ReadRequest:
    return ReadRequest(client, [port], [Replica(host, 7000) for host in replicas], size_bytes,
                       replica_policy=policies.get("replica_policy"), path_policy=policies.get("path_policy"))


def place(controller: Controller, *arguments: Any, **more: Any) -> Read:
    return controller.flowserver.place(wanted(*arguments, **more))


def agree(controller: Controller) -> None:
    """The book, the model and the tables hold the same flows on the same paths."""
    book = {part.five_tuple: (part.path, part.flow_id) for part in controller.reads.flows()}
    assert book == controller.tables.entries
    model = {flow_id: flow.path for flow_id, flow in controller.flowserver.model().items()}
    assert model == {part.flow_id: part.path for part in controller.reads.flows()}


def middle(part: ReadPart) -> str:
    return part.path.nodes[2]


def measured(controller: Controller, *readings: tuple[ReadPart, int, float]) -> None:
    """A round of polls that read these byte counts at these ages of the entries."""
    for part, byte_count, seconds in readings:
        controller.tables.records[part.five_tuple].counted(byte_count, 0, seconds, 1.0)
    controller.flowserver.measured(EventMeasured(1.0))
    eventlet.sleep(0)


def test_placed_read_is_in_the_tables_and_in_the_model(controller: Controller) -> None:
    part = place(controller).parts[0]
    assert part.path.nodes[0] == SOURCE and part.path.nodes[-1] == CLIENT
    assert part.is_flow
    agree(controller)


def test_two_requests_at_once_take_different_paths(controller: Controller) -> None:
    threads = [eventlet.spawn(place, controller, port=40000 + number, client=client, replicas=(source,))
               for number, (client, source) in enumerate([("10.0.1.1", "10.0.0.1"), ("10.0.1.2", "10.0.0.2")])]
    first, second = (thread.wait() for thread in threads)
    assert middle(first.parts[0]) != middle(second.parts[0])
    agree(controller)


def test_many_requests_and_ends_at_once_leave_nothing_behind(controller: Controller) -> None:
    def come_and_go(number: int) -> None:
        read = place(controller, port=41000 + number, client=sorted(HOSTS)[number % 4], replicas=tuple(HOSTS))
        eventlet.sleep(0)
        controller.flowserver.end(read.id)

    pool = eventlet.GreenPool(50)
    for number in range(200):
        pool.spawn(come_and_go, number)
    pool.waitall()
    assert len(controller.reads) == 0
    agree(controller)


@pytest.mark.parametrize("failure", [SwitchRefused(EDGES[0], "type", "code"), SwitchGone(EDGES[0])])
def test_refused_read_leaves_nothing_behind(controller: Controller, failure: Exception) -> None:
    controller.tables.failures = [failure]  # type: ignore[list-item]
    with pytest.raises(type(failure)):
        place(controller)
    assert len(controller.reads) == 0
    agree(controller)


def test_read_that_cannot_be_told_leaves_nothing_behind(
        controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("speedwell.controller.reads.models.PlacedPart", lambda **_: 1 / 0)
        assert controller.ask("POST", "/v1/reads", read_of()).status_int == 500
    assert len(controller.reads) == 0 and controller.tables.entries == {}
    assert controller.ask("POST", "/v1/reads", read_of()).status_int == 201


def test_refused_read_does_not_change_what_others_are_thought_to_get(controller: Controller) -> None:
    part = place(controller).parts[0]
    before = controller.flowserver.model()[part.flow_id].bandwidth_bps
    controller.tables.failures = [SwitchRefused(EDGES[0], "type", "code")]
    with pytest.raises(SwitchRefused):
        place(controller, port=40001)
    assert controller.flowserver.model()[part.flow_id].bandwidth_bps == pytest.approx(before)


def test_path_that_dies_before_it_is_installed_is_chosen_again(controller: Controller) -> None:
    controller.tables.failures = [NoSuchPath("a link went")]
    place(controller)
    assert len(controller.reads) == 1
    agree(controller)


def test_path_that_always_dies_is_given_up(controller: Controller) -> None:
    controller.tables.failures = [NoSuchPath("a link went")] * module.PLACEMENT_ATTEMPTS
    with pytest.raises(NoSuchPath):
        place(controller)
    assert len(controller.reads) == 0
    agree(controller)


def test_replica_on_the_clients_host_needs_no_entry(controller: Controller) -> None:
    read = place(controller, replicas=(SOURCE, CLIENT))
    assert [part.is_flow for part in read.parts] == [False]
    assert controller.tables.entries == {}
    controller.flowserver.end(read.id)
    assert len(controller.reads) == 0


@pytest.mark.parametrize("replica_policy", ["mayflower", "nearest", "sinbad-r", "random"])
@pytest.mark.parametrize("path_policy", ["mayflower", "ecmp"])
def test_policy_is_chosen_by_the_request(controller: Controller, replica_policy: str, path_policy: str) -> None:
    read = place(controller, replicas=(SOURCE, "10.0.1.2"), replica_policy=replica_policy, path_policy=path_policy)
    assert (read.replica_policy, read.path_policy) == (replica_policy, path_policy)
    if replica_policy in ("nearest", "mayflower"):
        assert read.parts[0].five_tuple.source == "10.0.1.2"
    agree(controller)


def test_policy_is_the_settings_where_the_request_has_none() -> None:
    controller = Controller(replica_policy="nearest", path_policy="ecmp")
    read = place(controller)
    assert (read.replica_policy, read.path_policy) == ("nearest", "ecmp")


def test_unknown_replica_is_searched_for_but_not_waited_for(controller: Controller) -> None:
    location = HostLocation("10.0.0.9", "02:00:00:00:00:99", EDGES[0], 2)
    controller.hosts.appearing["10.0.0.9"] = (0.01, location)
    place(controller, replicas=("10.0.0.9", SOURCE))
    assert "10.0.0.9" not in controller.state.hosts
    eventlet.sleep(0.02)
    assert "10.0.0.9" in controller.state.hosts


def test_first_replica_to_be_found_serves(controller: Controller) -> None:
    location = HostLocation("10.0.0.9", "02:00:00:00:00:99", EDGES[0], 2)
    controller.hosts.appearing["10.0.0.9"] = (0.01, location)
    with eventlet.Timeout(0.5):
        read = place(controller, replicas=("10.0.0.8", "10.0.0.9"))
    assert read.parts[0].five_tuple.source == "10.0.0.9"


def test_no_replica_known_is_an_unknown_host(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_search, "LOCATE_SECONDS", 0.02)
    threads = [eventlet.spawn(place, controller, replicas=("10.0.0.8", "10.0.0.9")) for _ in range(3)]
    for thread in threads:
        with pytest.raises(UnknownHost, match=r"10\.0\.0\.8 or 10\.0\.0\.9"):
            thread.wait()
    assert sorted(controller.hosts.asked) == ["10.0.0.8", "10.0.0.9"]
    assert len(controller.reads) == 0


def test_unknown_client_is_an_unknown_host(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_search, "LOCATE_SECONDS", 0.02)
    with pytest.raises(UnknownHost, match=r"10\.9\.9\.9"):
        place(controller, client="10.9.9.9")


def test_client_behind_a_lost_switch_has_no_path(controller: Controller) -> None:
    controller.state.switch_disconnected(EDGES[1])
    with pytest.raises(NoSuchPath):
        place(controller)


def test_first_of_several_dataservers_on_one_host_is_meant(controller: Controller) -> None:
    read = controller.flowserver.place(ReadRequest(
        CLIENT, [40000], [Replica(SOURCE, 7005), Replica(SOURCE, 7000)], 1000))
    assert read.parts[0].five_tuple.source_port == 7005


def test_ended_read_is_nowhere(controller: Controller) -> None:
    read = place(controller)
    controller.flowserver.end(read.id)
    agree(controller)
    assert controller.tables.entries == {}
    with pytest.raises(UnknownRead):
        controller.flowserver.end(read.id)


def test_read_is_forgotten_even_if_its_entry_cannot_be_removed(controller: Controller) -> None:
    read = place(controller)
    controller.tables.failures = [SwitchRefused(EDGES[0], "type", "code")]
    with pytest.raises(SwitchRefused):
        controller.flowserver.end(read.id)
    assert len(controller.reads) == 0 and controller.flowserver.model() == {}


def test_connection_used_anew_ends_the_read_that_had_it(controller: Controller) -> None:
    former = place(controller)
    read = place(controller)
    assert controller.reads.get(former.id) is None
    agree(controller)
    with pytest.raises(UnknownRead):
        controller.flowserver.end(former.id)
    agree(controller)
    assert controller.tables.entries[read.parts[0].five_tuple][1] == read.parts[0].flow_id


def idled_out(part: ReadPart, **changes: Any) -> EventFlowsEnded:
    """What forwarding tells when a switch took the entry of a part out."""
    return EventFlowsEnded((Claim(**({"five_tuple": part.five_tuple, "claimant": CLAIMANT,
                                      "subject": part.flow_id} | changes)),), is_idle=True)


def test_idled_out_entry_ends_the_read_of_a_dead_client(controller: Controller) -> None:
    read = place(controller)
    controller.flowserver.flows_ended(idled_out(read.parts[0], subject="an earlier one on the same connection"))
    controller.flowserver.flows_ended(idled_out(read.parts[0], claimant=Claimant("others", 1)))
    assert controller.reads.get(read.id) is read
    controller.flowserver.flows_ended(idled_out(read.parts[0]))
    assert len(controller.reads) == 0 and controller.flowserver.model() == {}


def test_entry_that_never_saw_traffic_expires(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    now = clocked(monkeypatch)
    idle, busy = place(controller).parts[0], place(controller, port=40001).parts[0]
    now[0] += controller.state.settings.read_idle_timeout_seconds + 1
    measured(controller, (idle, 0, 1.0), (busy, 1000, 1.0))
    assert controller.reads.flows() == [idle, busy]
    now[0] += EXPIRY_SLACK_SECONDS
    measured(controller, (idle, 0, 2.0), (busy, 2000, 2.0))
    eventlet.sleep(0)
    assert controller.reads.flows() == [busy]
    agree(controller)


def test_of_many_local_reads_whose_clients_tell_nothing_the_oldest_are_forgotten(controller: Controller) -> None:
    reads = [place(controller, client=SOURCE, port=1024 + number) for number in range(MAX_LOCAL_READS + 5)]
    remote = place(controller)
    measured(controller)
    assert {read.id for read in controller.reads} == {read.id for read in [*reads[5:], remote]}


def test_local_read_whose_client_died_is_forgotten(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    now = clocked(monkeypatch)
    place(controller, replicas=(CLIENT,))
    now[0] += LOCAL_READ_SECONDS + 1
    measured(controller)
    assert len(controller.reads) == 0


def test_the_first_reading_tells_the_policy_what_is_left_and_nothing_of_the_rate(controller: Controller) -> None:
    part = place(controller).parts[0]
    share_bps = controller.flowserver.model()[part.flow_id].bandwidth_bps
    measured(controller, (part, 4_000_000, 1.0))
    flow = controller.flowserver.model()[part.flow_id]
    assert flow.remaining_bits == 8 * (part.size_bytes - 4_000_000)
    assert flow.bandwidth_bps == share_bps


def test_counters_move_a_read_on(controller: Controller) -> None:
    part = place(controller).parts[0]
    measured(controller, (part, 1_000_000, 1.0))
    measured(controller, (part, 3_000_000, 2.0))
    assert part.transferred_bytes == 3_000_000
    assert part.measured_bps == pytest.approx(16e6)
    assert controller.flowserver.model()[part.flow_id].measured_bps == pytest.approx(16e6)


def test_link_rate_beyond_the_known_flows_is_background(controller: Controller) -> None:
    for seconds in (1.0, 2.0):
        controller.measurements.read_port((EDGES[0], 3), 0, int(seconds * 5_000_000), seconds, seconds)
    controller.flowserver.measured(EventMeasured(1.0))
    assert middle(place(controller).parts[0]) == AGGREGATIONS[1]


def lose_link(controller: Controller, a: str, b: str) -> EventPathsChanged:
    """Take a link out of the network, as discovery and forwarding would tell it."""
    key = next(key for key, other in controller.state.links.items() if (key[0], other[0]) == (a, b))
    lost = frozenset(controller.state.remove_link(key))
    affected = tuple(AffectedPath(connection, path) for connection, (path, _) in controller.tables.entries.items()
                     if path is not None and lost & set(path.links))
    for each in affected:
        controller.tables.divert(each.five_tuple, None)
    return EventPathsChanged(lost, frozenset(), affected)


def tell(controller: Controller, event: EventPathsChanged) -> None:
    controller.flowserver.paths_changed(event)
    for _ in range(5):
        eventlet.sleep(0)


def test_running_read_is_moved_off_a_dead_link(controller: Controller) -> None:
    part = place(controller).parts[0]
    other = next(node for node in AGGREGATIONS if node != middle(part))
    tell(controller, lose_link(controller, EDGES[0], middle(part)))
    assert middle(part) == other
    assert part.reroutes == 1
    agree(controller)


def test_move_off_a_dead_link_counts_once_whoever_is_first_to_make_it(controller: Controller) -> None:
    part = place(controller).parts[0]
    flow, dead = part.five_tuple, part.path
    live = next(path for path in controller.state.network.shortest_paths(SOURCE, CLIENT) if path != dead)
    lost = lose_link(controller, EDGES[0], middle(part))
    controller.tables.divert(flow, live)        # by its coflow
    tell(controller, lost)
    assert (part.path, part.reroutes) == (live, 1)
    assert controller.tables.records[flow].claims[CLAIMANT].path == live, "its own path is another one too"
    controller.flowserver.flows_moved(EventFlowsMoved((flow,)))
    assert part.reroutes == 1
    agree(controller)


def test_move_to_a_path_that_a_coflow_likes_better_is_no_reroute(controller: Controller) -> None:
    part = place(controller).parts[0]
    other = next(path for path in controller.state.network.shortest_paths(SOURCE, CLIENT) if path != part.path)
    controller.tables.divert(part.five_tuple, other)
    controller.flowserver.flows_moved(EventFlowsMoved((part.five_tuple,)))
    eventlet.sleep(0)
    assert (part.path, part.reroutes) == (other, 0)
    agree(controller)


def test_read_without_any_path_left_is_moved_when_one_comes_back(controller: Controller) -> None:
    part = place(controller).parts[0]
    for aggregation in AGGREGATIONS:
        tell(controller, lose_link(controller, EDGES[0], aggregation))
    assert part.stranded
    controller.state.add_link((EDGES[0], 3), (AGGREGATIONS[0], 1))
    measured(controller, (part, 0, 1.0))
    for _ in range(5):
        eventlet.sleep(0)
    assert not part.stranded and middle(part) == AGGREGATIONS[0]
    agree(controller)


def test_move_that_a_switch_refuses_is_tried_again(controller: Controller) -> None:
    part = place(controller).parts[0]
    controller.tables.failures = [SwitchRefused(EDGES[0], "type", "code")]
    tell(controller, lose_link(controller, EDGES[0], middle(part)))
    assert part.stranded
    measured(controller, (part, 0, 1.0))
    for _ in range(5):
        eventlet.sleep(0)
    assert not part.stranded
    agree(controller)


def test_host_that_moved_ends_its_flows(controller: Controller) -> None:
    place(controller)
    previous = controller.state.hosts[SOURCE]
    location = HostLocation(SOURCE, previous.mac, EDGES[1], 2)
    controller.state.set_host(location)
    controller.flowserver._host_changed(EventHostChanged(SOURCE, location, previous))
    for _ in range(3):
        eventlet.sleep(0)
    assert len(controller.reads) == 0
    agree(controller)


def test_nobody_ends_anothers_read_by_naming_its_connection() -> None:
    controller = Controller()
    first = json.loads(controller.ask("POST", "/v1/reads", read_of(), peer="10.255.0.1").body)
    refused = controller.ask("POST", "/v1/reads", read_of(), peer="10.255.0.2")
    assert refused.status_int == 409 and "bind another port" in json.loads(refused.body)["detail"]
    assert [read.id for read in controller.reads] == [first["id"]]

    again = json.loads(controller.ask("POST", "/v1/reads", read_of(), peer="10.255.0.1").body)
    assert [read.id for read in controller.reads] == [again["id"]], "it has bound its port anew"


def stood_still(controller: Controller, seconds: float) -> None:
    for part in controller.reads.flows():
        part.moved_at -= seconds


def test_a_read_gives_its_connection_to_whoever_asks_once_it_should_have_idled_out() -> None:
    controller = Controller()
    controller.ask("POST", "/v1/reads", read_of(), peer="10.255.0.1")
    stood_still(controller, controller.state.settings.read_idle_timeout_seconds - 1)
    assert controller.ask("POST", "/v1/reads", read_of(), peer="10.255.0.2").status_int == 409
    stood_still(controller, 2)
    second = controller.ask("POST", "/v1/reads", read_of(), peer="10.255.0.2")
    assert [read.id for read in controller.reads] == [json.loads(second.body)["id"]]


def test_a_read_that_somebody_holds_back_keeps_its_connection() -> None:
    controller = Controller()
    first = json.loads(controller.ask("POST", "/v1/reads", read_of(), peer="10.255.0.1").body)
    flow = controller.reads.flows()[0].five_tuple
    controller.tables.records[flow].claims[COFLOWS] = Claim(flow, COFLOWS, "one", rate_bps=0.0, lifetime_seconds=15)
    stood_still(controller, 600)
    assert controller.ask("POST", "/v1/reads", read_of(), peer="10.255.0.2").status_int == 409
    assert [read.id for read in controller.reads] == [first["id"]]
    del controller.tables.records[flow].claims[COFLOWS]
    assert controller.ask("POST", "/v1/reads", read_of(), peer="10.255.0.2").status_int == 201
