"""`speedwell status` during an upgrade."""

import pytest

from speedwell.cluster.commands.status import _document, _print_statistics
from speedwell.fs.proto.speedwell_pb2 import DataserverStatus, Replica, StatisticsReply


def server(name: str, release: str, alive: bool = True) -> DataserverStatus:
    return DataserverStatus(server=Replica(dataserver_id=name, alive=alive), release=release)


def test_it_names_who_is_of_which_release_until_all_that_live_are_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    _print_statistics(_document(StatisticsReply(release="0.2.0", dataservers=[
        server("d0", "0.2.0"), server("d1", "0.1.0"), server("d2", "")])))
    assert "an upgrade is under way: d2 an earlier release; d1 0.1.0; nameserver, d0 0.2.0" in capsys.readouterr().out
    _print_statistics(_document(StatisticsReply(release="0.2.0", dataservers=[
        server("d0", "0.2.0"), server("d1", "0.1.0", alive=False)])))
    assert "upgrade" not in capsys.readouterr().out
