"""Nothing is deleted on the word of a namespace that is not, or may not be, the one the contents belong to."""

from typing import Any

import pytest

from speedwell.fs.errors import NamespaceRolledBack, WrongNamespace
from speedwell.fs.nameserver.backup.provenance import SKIPPED_INODES
from speedwell.fs.nameserver.service.dispatch import Requests
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.wire.identification import UNKNOWN_NAMESPACE
from tests.unit.fs.test_nameserver_service import UUID, Bench

OTHER = bytes(range(16))
GRACE_SECONDS = 60


def orphan(inode: int = 1) -> pb.FileReport:
    return pb.FileReport(file_id=UUID, inode=inode, size=5, epoch=1)


def dropped(bench: Bench, number: int, **fields: Any) -> list[str]:
    """What a dataserver that holds an orphan is told to drop when it has reported it for long enough."""
    bench.beat(number, reports=[orphan()], **fields)
    bench.now_seconds += GRACE_SECONDS + 1
    for other in range(len(bench.service.statistics(pb.StatisticsRequest()).dataservers)):
        if other != number:
            bench.beat(other, **fields)
    return [report.file_id for report in bench.beat(number, reports=[orphan()], **fields).drop]


def test_a_dataserver_of_another_namespace_is_refused_and_told_both_ids_and_what_to_do() -> None:
    bench = Bench(dataservers=1)
    own = bench.service.provenance.namespace_id
    with pytest.raises(WrongNamespace) as refusal:
        bench.beat(7, namespace=OTHER, reports=[orphan()])
    for part in (OTHER.hex(), own.hex(), "d7", "--etcd-prefix", "speedwell node adopt d7"):
        assert part in str(refusal.value)
    statistics = bench.service.statistics(pb.StatisticsRequest())
    assert [status.server.dataserver_id for status in statistics.dataservers] == ["d0"]
    assert list(statistics.warnings) == [str(refusal.value)]
    assert statistics.namespace == own


def test_who_holds_contents_of_an_unknown_namespace_is_refused() -> None:
    with pytest.raises(WrongNamespace, match="has forgotten"):
        Bench(dataservers=1).beat(7, namespace=UNKNOWN_NAMESPACE)


def test_an_operator_has_a_dataserver_adopted() -> None:
    bench = Bench(dataservers=1)
    with pytest.raises(WrongNamespace):
        bench.beat(7, namespace=OTHER)
    bench.service.administration.adopt(pb.AdoptRequest(dataserver_id="d7"))
    reply = bench.beat(7, namespace=OTHER)
    own = bench.service.provenance.namespace_id
    assert (reply.adopt, reply.namespace, reply.lease_seconds) == (True, own, 0)
    reply = bench.beat(7, namespace=own, highest_inode=[500])    # of the other namespace
    assert (reply.adopt, reply.lease_seconds > 0) == (False, True)
    assert not bench.service.statistics(pb.StatisticsRequest()).warnings
    with pytest.raises(WrongNamespace):
        bench.beat(7, namespace=OTHER)   # the word was for once


def test_a_store_keeps_its_id_and_another_one_has_another() -> None:
    bench = Bench()
    before = bench.service.provenance.namespace_id
    bench.restart()
    assert bench.service.provenance.namespace_id == before != Bench().service.provenance.namespace_id


def test_no_orphan_is_dropped_before_every_dataserver_has_reported_all_it_holds() -> None:
    bench = Bench(dataservers=3)
    bench.restart()
    for number in range(3):
        bench.beat(number, inventory_complete=False)
    assert dropped(bench, 0, inventory_complete=False) == []
    bench.beat(0)
    bench.beat(1)
    assert list(bench.service.statistics(pb.StatisticsRequest()).awaited_inventories) == ["d2"]
    assert [report.file_id for report in bench.beat(0, reports=[orphan()]).drop] == []
    bench.beat(2)
    assert [report.file_id for report in bench.beat(0, reports=[orphan()]).drop] == [UUID]


def test_an_inventory_of_an_earlier_term_does_not_count() -> None:
    bench = Bench(dataservers=1)
    before = bench.service.provenance.term
    bench.restart()
    assert dropped(bench, 0, term=before) == []


def test_no_removed_content_is_deleted_before_the_inventories_are_in() -> None:
    bench = Bench(dataservers=1)
    made = bench.create()
    bench.service.remove(pb.RemoveRequest(path=b"/f"))
    bench.restart()
    bench.now_seconds += GRACE_SECONDS + 1
    assert list(bench.beat(0, inventory_complete=False).delete) == []
    assert list(bench.beat(0).delete) == [made.file_id]


def test_a_dataserver_that_is_gone_and_holds_no_replica_any_more_is_not_waited_for() -> None:
    bench = Bench(dataservers=2)
    bench.restart()
    assert bench.service.provenance.awaited(bench.now_seconds) == ["d0", "d1"]
    for _ in range(8):    # until it is given up, and all files have been looked at
        bench.now_seconds += 10
        bench.beat(0)
    assert bench.service.provenance.awaited(bench.now_seconds) == []


def test_a_content_no_file_has_goes_without_an_epoch_and_a_surplus_replica_with_one() -> None:
    bench = Bench(dataservers=4)
    made = bench.create()
    outside = next(number for number in range(4)
                   if f"d{number}" not in [replica.dataserver_id for replica in made.replicas])
    surplus = pb.FileReport(file_id=made.file_id, inode=made.inode, size=5, epoch=1)
    bench.beat(outside, reports=[surplus, orphan()])
    bench.now_seconds += GRACE_SECONDS + 1
    for number in range(4):
        bench.beat(number)
    assert [(report.file_id, report.epoch > 0) for report in bench.beat(outside, reports=[surplus, orphan()]).drop
            ] == [(made.file_id, True), (UUID, False)]


@pytest.mark.parametrize("fields", [{"reports": [orphan(500)]}, {"highest_inode": [500]}])
def test_an_inode_that_was_never_given_out_proves_an_old_copy_which_is_not_changed(fields: dict[str, Any]) -> None:
    bench = Bench(dataservers=2)
    bench.create(b"/before")
    requests = Requests(bench.service)
    reply = bench.beat(1, **fields)
    assert (list(reply.drop), list(reply.delete), reply.lease_seconds) == ([], [], 0)
    for name, request in (("Create", pb.CreateRequest(path=b"/f", id=pb.ChangeId(requester=1, sequence=1))),
                          ("Remove", pb.RemoveRequest(path=b"/before")),
                          ("Commit", pb.CommitRequest(inode=2, file_id=UUID, size=1)),
                          ("Mirror", pb.MirrorRequest(dataserver_id="d0")), ("Repair", pb.RepairRequest())):
        with pytest.raises(NamespaceRolledBack, match=r"inode 500.*below 3.*fsck --accept-roll-back"):
            requests.answer(name, request.SerializeToString())
    requests.answer("Lookup", pb.LookupRequest(path=b"/before").SerializeToString())
    assert "old copy" in bench.service.statistics(pb.StatisticsRequest()).warnings[0]


def test_each_block_of_numbers_proves_an_old_copy_and_is_left_behind_when_an_operator_accepts_it() -> None:
    bench, slot = Bench(dataservers=1), 9 << 56
    bench.beat(0, highest_inode=[1, slot + 70])     # a rebuilt nameserver knows no directory of that slot
    assert f"inode {slot + 70}" in bench.service.statistics(pb.StatisticsRequest()).warnings[0]
    bench.service.administration.repair(pb.RepairRequest(accept_roll_back=True))
    assert bench.beat(0, highest_inode=[1, slot + 70]).lease_seconds > 0
    assert bench.service._namespace.superblocks.next_beside(slot) == slot + 70 + SKIPPED_INODES


def test_an_operator_accepts_an_old_copy_and_no_inode_number_is_given_out_twice() -> None:
    bench = Bench(dataservers=1)
    bench.beat(0, highest_inode=[500])
    bench.service.administration.repair(pb.RepairRequest(accept_roll_back=True))
    assert not bench.service.statistics(pb.StatisticsRequest()).warnings
    assert bench.beat(0, highest_inode=[500]).lease_seconds > 0
    assert bench.create().inode == 500 + SKIPPED_INODES


def test_epochs_that_a_namespace_lost_are_left_behind_by_what_the_newest_of_the_dataservers_knows() -> None:
    bench = Bench(dataservers=3)
    made = bench.create()

    def report(number: int, epoch: int) -> pb.Attributes:
        bench.beat(number, reports=[pb.FileReport(file_id=made.file_id, inode=made.inode, size=5, epoch=epoch)])
        return bench.lookup()

    primary, second, third = (int(replica.dataserver_id[1:]) for replica in made.replicas)
    assert report(primary, 1).epoch == 1
    raised = report(second, 5)
    assert (raised.epoch > 5, raised.replicas[0].dataserver_id) == (True, f"d{second}")
    again = report(third, 6)     # there was a later set still
    assert (again.epoch > raised.epoch, again.replicas[0].dataserver_id) == (True, f"d{third}")
    assert report(second, 5) == report(primary, 1) == report(third, again.epoch) == again
