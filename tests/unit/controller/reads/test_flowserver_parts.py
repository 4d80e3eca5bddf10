"""Reads of several parts: each is a flow of its own, and all come and go together unless one ends early."""

import eventlet
import pytest

from speedwell.controller.errors import NoSuchPath, SwitchGone, SwitchRefused
from speedwell.controller.policy.reads.selection_request import Replica
from speedwell.controller.reads.book import Read, ReadRequest, UnknownPart, UnknownRead
from speedwell.controller.reads.byte_ranges import ALIGNMENT_BYTES
from tests.unit.controller.in_process import CAPACITY_BPS, EDGES, Controller, clocked
from tests.unit.controller.reads.test_flowserver import agree, idled_out, measured

SERVERS = ("10.0.0.1", "10.0.0.2")
CLIENT, OTHER = "10.0.1.1", "10.0.1.2"
SIZE_BYTES = 10 ** 8 + 1
REFUSED = SwitchRefused(EDGES[0], "type", "code")


@pytest.fixture
def controller() -> Controller:
    """Both servers send to another client already, which leaves half of either server's link."""
    controller = Controller()
    for number, server in enumerate(SERVERS):
        controller.flowserver.place(ReadRequest(OTHER, [30000 + number], [Replica(server, 7000)], 10 ** 10))
    return controller


def place(controller: Controller, ports: tuple[int, ...] = (40000, 40001), size_bytes: int = SIZE_BYTES,
          most_parts: int | None = None, replica_policy: str | None = None, path_policy: str | None = None) -> Read:
    return controller.flowserver.place(ReadRequest(
        CLIENT, ports, [Replica(host, 7000) for host in SERVERS], size_bytes, most_parts=most_parts,
        replica_policy=replica_policy, path_policy=path_policy))


def busy(controller: Controller) -> int:
    return len(controller.flowserver.model()) - 2


def test_each_part_has_its_own_replica_port_entry_and_flow(controller: Controller) -> None:
    read = place(controller)
    first, second = read.parts
    assert {part.five_tuple.source for part in read.parts} == set(SERVERS)
    assert [part.five_tuple.destination_port for part in read.parts] == [40000, 40001]
    assert first.flow_id != second.flow_id and busy(controller) == 2
    assert first.estimated_bps + second.estimated_bps == pytest.approx(CAPACITY_BPS)
    agree(controller)


def test_sizes_are_whole_aligned_bytes_that_add_up(controller: Controller) -> None:
    first, second = place(controller).parts
    assert (first.offset_bytes, second.offset_bytes) == (0, first.size_bytes)
    assert first.size_bytes + second.size_bytes == SIZE_BYTES
    assert first.size_bytes % ALIGNMENT_BYTES == 0
    assert abs(first.size_bytes - SIZE_BYTES / 2) <= ALIGNMENT_BYTES


@pytest.mark.parametrize(("ports", "most_parts", "parts"), [
    ((40000,), None, 1), ((40000,), 2, 1), ((40000, 40001), 1, 1), ((40000, 40001, 40002), None, 2)])
def test_there_are_no_more_parts_than_ports_than_asked_for_or_than_replicas(
        controller: Controller, ports: tuple[int, ...], most_parts: int | None, parts: int) -> None:
    assert len(place(controller, ports, most_parts=most_parts).parts) == parts
    agree(controller)


def test_read_too_small_to_cut_has_one_part(controller: Controller) -> None:
    (part,) = place(controller, size_bytes=20_000).parts
    assert (part.offset_bytes, part.size_bytes) == (0, 20_000)
    agree(controller)


@pytest.mark.parametrize("replica_policy", ["nearest", "sinbad-r", "sinbad-r-measured", "random", "hdfs",
                                            "power-of-two-choices"])
def test_policies_that_mayflower_is_compared_with_read_from_one_replica(
        controller: Controller, replica_policy: str) -> None:
    assert len(place(controller, replica_policy=replica_policy).parts) == 1


def test_hashed_paths_are_those_of_the_parts_own_connections(controller: Controller) -> None:
    read = place(controller, (41000, 42000), path_policy="ecmp")
    for part in read.parts:
        alone = controller.flowserver.place(ReadRequest(
            CLIENT, [part.five_tuple.destination_port], [Replica(part.five_tuple.source, 7000)], 1000,
            path_policy="ecmp"))
        assert alone.parts[0].path == part.path


@pytest.mark.parametrize("failures", [[REFUSED], [REFUSED, REFUSED], [SwitchGone(EDGES[0])],
                                      [NoSuchPath("a link went"), REFUSED]])
def test_part_that_is_refused_takes_the_whole_read_back(controller: Controller, failures: list[Exception]) -> None:
    controller.tables.failures = list(failures)  # type: ignore[arg-type]
    with pytest.raises(type(failures[-1])):
        place(controller)
    assert len(controller.reads) == 2 and busy(controller) == 0
    agree(controller)


def test_part_whose_path_died_meanwhile_is_chosen_again(controller: Controller) -> None:
    controller.tables.failures = [NoSuchPath("a link went")]
    assert len(place(controller).parts) == 2
    agree(controller)


def test_end_of_the_read_ends_all_parts(controller: Controller) -> None:
    read = place(controller)
    controller.flowserver.end(read.id)
    assert busy(controller) == 0
    agree(controller)


def test_entry_that_cannot_be_removed_does_not_keep_the_others(controller: Controller) -> None:
    read = place(controller)
    controller.tables.failures = [REFUSED]
    with pytest.raises(SwitchRefused):
        controller.flowserver.end(read.id)
    assert len(controller.tables.entries) == 2 and busy(controller) == 0


def test_part_that_ends_early_frees_its_share(controller: Controller) -> None:
    read = place(controller)
    first, second = read.parts
    for flow in controller.reads.flows():
        if flow.five_tuple.destination == OTHER:
            controller.flowserver.end(flow.read_id)
    controller.flowserver.end_part(read.id, 0)
    assert controller.flowserver.model()[second.flow_id].bandwidth_bps == pytest.approx(CAPACITY_BPS)
    assert first.ended and not second.ended
    agree(controller)
    with pytest.raises(UnknownPart):
        controller.flowserver.end_part(read.id, 0)
    controller.flowserver.end(read.id)
    agree(controller)


def test_read_ends_with_its_last_part(controller: Controller) -> None:
    read = place(controller)
    for number in (1, 0):
        controller.flowserver.end_part(read.id, number)
    assert controller.reads.get(read.id) is None
    with pytest.raises(UnknownRead):
        controller.flowserver.end_part(read.id, 0)
    agree(controller)


@pytest.mark.parametrize("number", [2, 63])
def test_part_that_never_was_is_unknown(controller: Controller, number: int) -> None:
    with pytest.raises(UnknownPart):
        controller.flowserver.end_part(place(controller).id, number)


def test_local_part_can_be_ended(controller: Controller) -> None:
    read = controller.flowserver.place(ReadRequest(
        SERVERS[0], [1, 2], [Replica(host, 7000) for host in SERVERS], 10 ** 6))
    controller.flowserver.end_part(read.id, 0)
    assert controller.reads.get(read.id) is None


def test_parts_of_a_dead_client_idle_out_one_by_one(controller: Controller) -> None:
    read = place(controller)
    controller.flowserver.flows_ended(idled_out(read.parts[0]))
    assert controller.reads.get(read.id) is read and busy(controller) == 1
    controller.flowserver.flows_ended(idled_out(read.parts[1]))
    assert controller.reads.get(read.id) is None and busy(controller) == 0


def test_parts_are_measured_each_for_itself(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    clocked(monkeypatch)
    first, second = place(controller).parts
    measured(controller, (first, 1_000_000, 1.0), (second, 3_000_000, 1.0))
    assert (first.transferred_bytes, second.transferred_bytes) == (1_000_000, 3_000_000)


def test_many_reads_of_several_parts_come_and_go_without_a_trace(controller: Controller) -> None:
    def come_and_go(number: int) -> None:
        read = place(controller, (41000 + 2 * number, 41001 + 2 * number))
        eventlet.sleep(0)
        if number % 2:
            controller.flowserver.end_part(read.id, 0)
        controller.flowserver.end(read.id)

    pool = eventlet.GreenPool(20)
    for number in range(60):
        pool.spawn(come_and_go, number)
    pool.waitall()
    assert len(controller.reads) == 2 and busy(controller) == 0
