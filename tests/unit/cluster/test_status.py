"""What `speedwell status` shows."""

import pytest

from speedwell.cluster.commands.status import Status, _document, _print, _print_servers, _print_statistics, _wrong
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


def test_it_ends_with_what_is_wrong_or_says_that_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    _print(Status("10.0.0.1:7400"))
    assert capsys.readouterr().out.splitlines()[-1] == "all is well"
    _print(Status("10.0.0.1:7400", problems=["dataserver d0 is dead"]))
    shown = capsys.readouterr()
    assert "all is well" not in shown.out and shown.err == "speedwell: dataserver d0 is dead\n"


def test_fewer_dataservers_than_a_change_needs_replicas_are_wrong() -> None:
    def wrong(alive: int, replication: int) -> list[str]:
        reply = StatisticsReply(replication=replication, min_replicas=2,
                                dataservers=[server(f"d{number}", "") for number in range(alive)])
        return _wrong(reply, _document(reply))

    assert wrong(0, 3) == ["no file can be made: 0 dataservers alive, a change needs 2 replicas"]
    assert wrong(1, 3) == ["no file can be made: 1 dataserver alive, a change needs 2 replicas"]
    assert wrong(2, 3) == wrong(1, 1) == []


def test_a_process_that_runs_and_sends_no_heartbeats_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    statistics = _document(StatisticsReply(dataservers=[server("d0", "", alive=False), server("d1", "")]))
    processes = [{"name": name, "pid": 7, "alive": True, "memory_bytes": 0, "address": ""} for name in ("d0", "d1")]
    _print_servers(Status("10.0.0.1:7400", processes=processes, statistics=statistics))
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == ["state", "SILENT", "running"]


def test_the_dataserver_of_a_machine_has_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    own = server("a", "")
    own.server.host, own.server.port, own.server.rack = "fd00::1", 7500, "rack-a"
    process = {"name": "dataserver", "pid": 7, "alive": True, "memory_bytes": 0, "address": "[fd00::1]:7500"}
    _print_servers(Status("[fd00::1]:7400", processes=[process], statistics=_document(
        StatisticsReply(dataservers=[own, server("b", "")]))))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["process", "dataserver", "b"]


def test_many_processes_that_are_well_are_counted_and_the_others_have_a_row_each(
        capsys: pytest.CaptureFixture[str]) -> None:
    servers = [server(f"r{number % 4}h{number}", "", alive=number != 7) for number in range(30)]
    for each in servers:
        each.server.rack = each.server.dataserver_id[:2]
    names = ["nameserver", *(f"dataserver-{each.server.dataserver_id}" for each in servers),
             *(f"agent-{each.server.dataserver_id}" for each in servers)]
    processes = [{"name": name, "pid": 7, "alive": name != "agent-r0h0", "memory_bytes": 1 << 20,
                  "address": f"{name}:1"} for name in names]
    roles = {f"{name}:1": "free" for name in names if name.startswith("agent")} | {"agent-r3h3:1": "turns to 2 hosts"}
    state = Status("10.0.0.1:7400", roles=roles, processes=processes,
                   statistics=_document(StatisticsReply(dataservers=servers)))
    _print_servers(state)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0].strip() for line in shown] == [
        "process", "nameserver", "29 dataservers", "dataserver-r3h7", "agent-r0h0", "28 host agents", "agent-r3h3",
        "`speedwell status --all` shows each process"]
    assert "29.0 MiB" in shown[2] and "4 racks" in shown[2] and "SILENT" in shown[3] and "DEAD" in shown[4]
    _print_servers(state, shows_all=True)
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(names)
