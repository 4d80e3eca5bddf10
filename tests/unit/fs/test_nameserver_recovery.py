"""Orders to make lost replicas again, as dataservers get them with their heartbeats; time is set by the tests."""

from typing import Any

import pytest

from speedwell.fs.errors import DataserverInUse, InvalidArgument, NoSpace, TooFewReplicas
from speedwell.fs.nameserver.replicas.copy_orders import BYTES_IN_FLIGHT, LEAST_BYTES, SLOW_BYTES_IN_FLIGHT
from speedwell.fs.proto import speedwell_pb2 as pb
from tests.unit.fs.test_nameserver_service import Bench, ids

GRACE_SECONDS = 60
FILES = 400
TIB = 1 << 40


class Cluster(Bench):
    """With disks of 1000 TiB, half full."""

    def beat(self, number: int, **fields: Any) -> pb.HeartbeatReply:
        return super().beat(number, **{"capacity_bytes": 1000 * TIB, "available_bytes": 500 * TIB} | fields)


@pytest.fixture
def bench() -> Bench:
    return Cluster()


def fill(bench: Bench, files: int, size_bytes: int, replication: int = 2) -> list[pb.Attributes]:
    """Files with a replica on d0 and others."""
    return [bench.commit(bench.create(b"/f%d" % number, replicas=["d0", f"d{1 + number % 3}"][:replication]),
                         size_bytes) for number in range(files)]


def lose_d0(bench: Bench) -> None:
    for _ in range(GRACE_SECONDS + 5):
        bench.now_seconds += 1
        for number in (1, 2, 3):
            bench.beat(number)


def beat(bench: Bench, number: int, seconds: float = 1, **fields: object) -> list[str]:
    """The files that a dataserver is told to copy."""
    bench.now_seconds += seconds
    return [copy.file_id for copy in bench.beat(number, **fields).copies]


def join(bench: Bench, file: pb.Attributes, target: str) -> None:
    """Make a dataserver a replica, as the file's primary does."""
    now = bench.service.lookup(pb.LookupRequest(inode=file.inode, to_append=True)).attributes
    bench.service.dataservers.change_replicas(pb.ChangeReplicasRequest(
        inode=file.inode, file_id=file.file_id, epoch=now.epoch, dataserver_id=ids(now)[0], add=[target]))


def test_many_small_files_of_a_lost_server_are_ordered_at_once(bench: Bench) -> None:
    fill(bench, FILES, 4096)
    lose_d0(bench)
    ordered = {file_id for number in (1, 2, 3) for file_id in beat(bench, number)}
    assert len(ordered) > FILES / 2


@pytest.mark.parametrize("replicas", [["d0", "d1"], ["d0", "d1", "d2"]])
@pytest.mark.parametrize("position", [0, 1])
def test_a_replica_whose_disk_is_full_is_replaced_at_once_by_one_with_room_for_the_file(
        bench: Bench, replicas: list[str], position: int) -> None:
    bench.beat(2, available_bytes=TIB)
    file = bench.create(replicas=replicas)
    full = replicas[position]
    request = pb.ChangeReplicasRequest(inode=file.inode, file_id=file.file_id, epoch=file.epoch, size=2 * TIB,
                                       dataserver_id="d0", remove=[full], full=[full])
    if len(replicas) == 3:
        left = [each.dataserver_id for each in bench.service.dataservers.change_replicas(request).replicas]
        assert left == [name for name in replicas if name != full]
        assert bench.service.dataservers.change_replicas(request).epoch == file.epoch + 1    # the answer was lost
    else:
        with pytest.raises(TooFewReplicas):
            bench.service.dataservers.change_replicas(request)
        assert ids(bench.lookup()) == replicas
    assert (beat(bench, 2, available_bytes=TIB), beat(bench, 3)) == ([], [file.file_id])


@pytest.mark.parametrize("full", [["d0"], ["d1"], ["d1", "d2"]])
def test_without_room_elsewhere_no_full_replica_leaves(bench: Bench, full: list[str]) -> None:
    bench.beat(3, available_bytes=TIB if len(full) == 1 else 500 * TIB)
    file = bench.create(replicas=["d0", "d1", "d2"])
    with pytest.raises(NoSpace, match=full[0]):
        bench.service.dataservers.change_replicas(pb.ChangeReplicasRequest(
            inode=file.inode, file_id=file.file_id, epoch=file.epoch, size=2 * TIB, dataserver_id="d0", remove=full,
            full=full))
    assert ids(bench.lookup()) == ["d0", "d1", "d2"]
    assert beat(bench, 3) == []


def test_large_files_are_ordered_up_to_the_bytes_in_flight(bench: Bench) -> None:
    fill(bench, 30, BYTES_IN_FLIGHT // 4)
    lose_d0(bench)
    ordered = [beat(bench, number) for number in (1, 2, 3)]
    assert all(1 <= len(files) <= 4 for files in ordered)


def test_a_file_larger_than_all_that_may_be_in_flight_is_copied_alone(bench: Bench) -> None:
    fill(bench, 6, 3 * BYTES_IN_FLIGHT)
    lose_d0(bench)
    assert [len(beat(bench, number)) for number in (1, 2, 3)] == [1, 1, 1]


def test_empty_files_count_too(bench: Bench) -> None:
    fill(bench, 3 * BYTES_IN_FLIGHT // LEAST_BYTES + 600, 0)
    lose_d0(bench)
    for _ in range(10):
        ordered = [beat(bench, number, 0.2) for number in (1, 2, 3)]
    assert all(len(files) == BYTES_IN_FLIGHT // LEAST_BYTES for files in ordered)


def test_the_look_goes_on_where_there_was_no_room_and_counts_every_file_once(bench: Bench) -> None:
    count = 4 * BYTES_IN_FLIGHT // LEAST_BYTES
    files = {file.file_id: file for file in fill(bench, count, 100)}
    lose_d0(bench)
    made: set[str] = set()
    rounds = 0
    ordered: dict[int, list[str]] = {1: [], 2: [], 3: []}
    while len(made) < count and rounds < 40:
        rounds += 1
        for number in (1, 2, 3):
            for file_id in ordered[number]:
                join(bench, files[file_id], f"d{number}")
            made.update(ordered[number])
            ordered[number] = beat(bench, number, 0.4, copied=ordered[number])
    assert len(made) == count
    assert rounds <= 10     # four would do if nothing were looked at twice
    for _ in range(20):
        for number in (1, 2, 3):
            beat(bench, number, 0.4)
    found = bench.service.statistics(pb.StatisticsRequest()).dataservers
    assert sum(status.replicas for status in found if status.server.dataserver_id != "d0") == 2 * count


def test_a_copy_that_is_under_way_is_not_ordered_again_and_one_that_was_not_heard_of_is(bench: Bench) -> None:
    fill(bench, 12, 4096)
    lose_d0(bench)
    ordered = beat(bench, 1)
    assert len(ordered) > 1
    assert set(beat(bench, 1, copying=ordered[:1])) == set(ordered[1:])


def test_finished_copies_make_room_at_once(bench: Bench) -> None:
    files = {file.file_id: file for file in fill(bench, 60, BYTES_IN_FLIGHT // 2)}
    lose_d0(bench)
    first = beat(bench, 1)
    for file_id in first:
        join(bench, files[file_id], "d1")
    second = beat(bench, 1, copied=first)
    assert first and second and not set(first) & set(second)


def test_a_copy_given_up_is_ordered_again(bench: Bench) -> None:
    (file,) = fill(bench, 1, 4096)
    lose_d0(bench)
    ordered = {number: beat(bench, number) for number in (2, 3)}
    target = next(number for number, files in ordered.items() if files)
    assert ordered[target] == [file.file_id]
    again = beat(bench, target, failed_copies=[file.file_id])
    assert again or any(beat(bench, number) for number in (2, 3))


def test_orders_of_a_target_that_dies_go_to_another_one(bench: Bench) -> None:
    fill(bench, 1, 4096)
    lose_d0(bench)
    target = next(number for number in (2, 3) if beat(bench, number))
    other = 5 - target
    found = [file_id for _ in range(8) for number in (1, other) for file_id in beat(bench, number, 0.5)]
    assert found


# ---------------------------------------------------------------------- even disks


def beat_all(bench: Bench, new_available: int = 1000 * TIB) -> list[pb.Copy]:
    """Half a second of heartbeats: d0 to d3 are half full, d4 is new. The copies that d4 is told to make."""
    bench.now_seconds += 0.5
    for number in range(4):
        assert not bench.beat(number).copies
    return list(bench.beat(4, available_bytes=new_available).copies)


def test_a_new_dataserver_gets_its_share_by_itself_slowly(bench: Bench) -> None:
    files = {file.file_id: file for file in fill(bench, 200, 100)}
    moved: set[str] = set()
    for _ in range(40):
        orders = beat_all(bench)
        assert len(orders) <= SLOW_BYTES_IN_FLIGHT // LEAST_BYTES
        for order in orders:
            assert len(order.replaces) == 1
            file = files[order.file_id]
            now = bench.service.lookup(pb.LookupRequest(inode=file.inode)).attributes
            bench.service.dataservers.change_replicas(pb.ChangeReplicasRequest(
                inode=file.inode, file_id=file.file_id, epoch=now.epoch, dataserver_id=ids(now)[0], add=["d4"],
                remove=list(order.replaces)))
        bench.now_seconds += 0.1
        bench.beat(4, available_bytes=1000 * TIB, copied=[order.file_id for order in orders])
        moved |= {order.file_id for order in orders}
    assert len(moved) > 30
    bench.beat(4, available_bytes=600 * TIB, copied=list(moved))
    assert not any(beat_all(bench, new_available=600 * TIB) for _ in range(30))


def test_nothing_moves_between_disks_that_differ_little(bench: Bench) -> None:
    fill(bench, 50, 100)
    assert not any(beat_all(bench, new_available=570 * TIB) for _ in range(30))


def test_a_full_dataserver_gives_files_away_by_itself(bench: Bench) -> None:
    fill(bench, 4, 100)
    found: list[pb.Copy] = []
    for _ in range(30):
        bench.now_seconds += 0.5
        bench.beat(0, available_bytes=0)
        found += [copy for number in (1, 2, 3) for copy in bench.beat(number).copies]
    assert found and {name for copy in found for name in copy.replaces} == {"d0"}


def test_a_move_leaves_a_file_in_as_many_racks(bench: Bench) -> None:
    """d0 and d1 are in one rack, d2 and d3 in another."""
    bench.commit(bench.create(b"/f0", replicas=["d2", "d0"]), 100)
    for _ in range(30):
        bench.now_seconds += 0.5
        for number, available in ((0, 0), (1, 500), (2, 500), (3, 1000)):
            copies = bench.beat(number, available_bytes=available * TIB).copies
            assert number == 1 or not copies    # on d3 it would be in one rack alone


# ---------------------------------------------------------------------- removing a dataserver for good


def remove(bench: Bench, name: str, force: bool = False) -> pb.RemoveDataserverReply:
    return bench.service.administration.remove_dataserver(pb.RemoveDataserverRequest(dataserver_id=name, force=force))


def listed(bench: Bench) -> list[str]:
    return [status.server.dataserver_id for status in bench.service.statistics(pb.StatisticsRequest()).dataservers]


def test_a_dataserver_that_is_alive_is_not_removed(bench: Bench) -> None:
    for force in (False, True):
        with pytest.raises(DataserverInUse, match="d0 is alive"):
            remove(bench, "d0", force)
    with pytest.raises(InvalidArgument, match="no dataserver 'x'"):
        remove(bench, "x")


def test_a_removed_dataserver_leaves_every_set_and_no_list_has_it_also_after_a_restart(bench: Bench) -> None:
    fill(bench, 1, 4096)
    lose_d0(bench)
    reply = remove(bench, "d0")
    assert (reply.replicas, reply.lost) == (1, 0)
    for restarted in (False, True):
        if restarted:
            bench.restart()
        for number in (1, 2, 3):
            beat(bench, number)
        assert listed(bench) == ["d1", "d2", "d3"]
        assert not bench.service.statistics(pb.StatisticsRequest()).awaited_inventories
        assert ids(bench.lookup(b"/f0")) == ["d1"]
        with pytest.raises(InvalidArgument):
            remove(bench, "d0")


def test_what_has_its_last_replica_there_is_told_and_kept_unless_forced(bench: Bench) -> None:
    (file,) = fill(bench, 1, 4096, replication=1)
    lose_d0(bench)
    with pytest.raises(DataserverInUse, match=rf"1 file, 4.0 KiB \(inode {file.inode}\)"):
        remove(bench, "d0")
    assert "d0" in listed(bench)
    reply = remove(bench, "d0", force=True)
    assert (reply.lost, reply.lost_bytes, list(reply.lost_inodes)) == (1, 4096, [file.inode])
    for number in (1, 2, 3):
        beat(bench, number)
    assert bench.lookup(b"/f0").size == 4096      # its name is there: what it lost is said by fsck and by reads


def test_a_removed_dataserver_that_comes_back_is_a_new_one_with_its_number(bench: Bench) -> None:
    fill(bench, 1, 4096, replication=1)
    lose_d0(bench)
    remove(bench, "d0", force=True)
    beat(bench, 0)
    assert [replica.alive for replica in bench.lookup(b"/f0").replicas] == [True]
    bench.beat(4)
    assert listed(bench) == ["d0", "d1", "d2", "d3", "d4"]


# ---------------------------------------------------------------------- reports


def test_dataservers_share_what_they_may_report_of_their_contents(bench: Bench) -> None:
    alone, many = Bench(1), Bench(40)
    one = alone.beat(0).report_bytes
    each = many.beat(0).report_bytes
    assert 0 < each < one < 41 * each


def test_more_is_reported_while_an_inventory_is_awaited(bench: Bench) -> None:
    assert bench.beat(0, inventory_complete=False, term=0).report_bytes >= bench.beat(0).report_bytes
    bench.restart()
    awaited = bench.beat(0, inventory_complete=False).report_bytes
    for number in range(4):
        bench.beat(number)
    assert awaited > bench.beat(0).report_bytes


def test_a_replica_made_is_no_longer_missing(bench: Bench) -> None:
    (file,) = fill(bench, 1, 4096)
    lose_d0(bench)
    target = next(number for number in (2, 3) if beat(bench, number))
    join(bench, file, f"d{target}")
    assert not beat(bench, target, copied=[file.file_id])
