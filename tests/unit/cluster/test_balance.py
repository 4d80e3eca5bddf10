"""What `node balance` says that it will move."""

from speedwell.cluster.balance import to_move
from speedwell.fs.proto.speedwell_pb2 import DataserverStatus, Replica


def status(name: str, used: int, *, alive: bool = True, draining: bool = False, capacity: int = 1000
           ) -> DataserverStatus:
    return DataserverStatus(server=Replica(dataserver_id=name, alive=alive), capacity_bytes=capacity,
                            available_bytes=capacity - used, draining=draining)


def test_nothing_moves_where_all_are_equally_full() -> None:
    assert to_move([status("d0", 500), status("d1", 540), status("d2", 460)]) == {}
    assert to_move([status("d0", 900)]) == {}
    assert to_move([]) == {}


def test_the_full_give_what_the_empty_take() -> None:
    assert to_move([status("d0", 900), status("d1", 100), status("d2", 500)]) == {"d0": 400, "d1": -400}


def test_who_is_away_or_drained_or_has_not_said_how_large_it_is_takes_no_part() -> None:
    others = [status("away", 0, alive=False), status("drained", 0, draining=True), status("new", 0, capacity=0)]
    assert to_move([status("d0", 500), status("d1", 500), *others]) == {}
