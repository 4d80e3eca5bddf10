"""What switches hold is known by reading it, as often as needed, and ever more rarely where that fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import eventlet
import pytest
from ryu.ofproto import ofproto_v1_3

from speedwell.controller.errors import SwitchTimedOut
from speedwell.controller.loops import TURN_SECONDS
from speedwell.controller.tables import read_back
from speedwell.controller.tables.backoff import FIRST_SECONDS, LAST_SECONDS, Backoff
from speedwell.controller.tables.entries import label_cookie, label_entry
from speedwell.controller.tables.installed_tables import InstalledTables
from speedwell.controller.tables.read_back import ReadBack
from tests.unit.controller.forwarding_world import ROUND_TRIP_SECONDS, World
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated

STRANGE = label_entry(4000, label_cookie(4000, 0), 1)


class Reader:
    """`InstalledTables` of its own for one switch of a fabric on which an application has settled."""

    def __init__(self, world: World, hub: SimulatedHub) -> None:
        self.hub = hub
        self.dpid, self.connection = min(world.connections.items())
        self.switch = self.connection.switch
        self.told: list[ReadBack] = []
        self.installed = InstalledTables(world.state, world.app.planner, world.app.flow_installer.meters,
                                         lambda dpid, found: self.told.append(found), world.app.loops)


def planned_is_other(reader: Reader) -> bool:
    audited = reader.installed.audit(reader.dpid)
    assert audited is not None
    return audited[0]


@pytest.fixture(name="run")
def _run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Reader], None]], None]:
    return lambda scenario: run_simulated(lambda hub: scenario(Reader(World(hub, monkeypatch), hub)))


def test_a_switch_that_was_read_is_known_and_put_right_once_its_single_flows_were_compared(run: Any) -> None:
    def scenario(reader: Reader) -> None:
        installed, dpid = reader.installed, reader.dpid
        assert not installed.holds(dpid, next(iter(reader.switch.flows)))
        installed.read(dpid)
        assert len(reader.told) == 1 and installed.tables[dpid].groups.keys() == reader.switch.groups.keys()
        assert installed.holds(dpid, next(iter(installed.tables[dpid].flows))) and not installed.is_put_right(dpid)
        del installed.unchecked[dpid]
        assert installed.is_put_right(dpid)
        installed.forget(dpid)
        assert not installed.is_put_right(dpid) and dpid not in installed

    run(scenario)


def test_an_audit_tells_what_somebody_else_changed_and_nothing_after_that(run: Any) -> None:
    def scenario(reader: Reader) -> None:
        assert reader.installed.audit(reader.dpid) is None, "never read"
        reader.installed.read(reader.dpid)
        assert not planned_is_other(reader)
        reader.switch.flows[STRANGE.key] = STRANGE
        assert planned_is_other(reader)
        assert not planned_is_other(reader) and reader.installed.holds(reader.dpid, STRANGE.key)

    run(scenario)


def test_an_audit_that_a_change_overtook_tells_nothing(run: Any) -> None:
    def scenario(reader: Reader) -> None:
        reader.installed.read(reader.dpid)
        audited = eventlet.spawn(reader.installed.audit, reader.dpid)
        eventlet.sleep(ROUND_TRIP_SECONDS / 2)
        reader.installed.was_sent(reader.dpid)
        assert audited.wait() is None

    run(scenario)


def test_a_switch_that_refuses_to_be_read_is_read_again_until_it_does_not(run: Any) -> None:
    def scenario(reader: Reader) -> None:
        tries: list[float] = []

        def refuse(message: bytes) -> bool:
            tries.append(reader.hub.now)
            return message[1] == ofproto_v1_3.OFPT_FLOW_MOD

        reader.connection.refuses = refuse
        reader.installed.read(reader.dpid)
        assert reader.dpid not in reader.installed
        eventlet.sleep(FIRST_SECONDS + 0.5)
        reader.connection.refuses = lambda message: False
        eventlet.sleep(2 * FIRST_SECONDS)
        assert len({round(at) for at in tries}) == 2 and reader.dpid in reader.installed and len(reader.told) == 1

    run(scenario)


def test_after_a_change_without_confirmation_nothing_is_known_until_the_switch_was_read(run: Any) -> None:
    def scenario(reader: Reader) -> None:
        reader.installed.read(reader.dpid)
        reader.installed.not_confirmed(reader.dpid, SwitchTimedOut(reader.dpid, 1.0))
        assert reader.dpid not in reader.installed
        eventlet.sleep(FIRST_SECONDS + 0.5)
        assert reader.dpid in reader.installed and len(reader.told) == 2

    run(scenario)


def test_labels_in_use_are_known_when_every_known_switch_was_audited(run: Any) -> None:
    def scenario(reader: Reader) -> None:
        assert reader.installed.labels_in_use is None
        reader.installed.read(reader.dpid)
        assert reader.installed.labels_in_use is None
        reader.installed.audit(reader.dpid)
        assert reader.installed.labels_in_use == frozenset()

    run(scenario)


def test_waits_double_up_to_the_last_for_each_switch_on_its_own() -> None:
    backoff = Backoff()
    waits = [backoff.failed("a") for _ in range(9)]
    assert waits == [min(FIRST_SECONDS * 2 ** number, LAST_SECONDS) for number in range(9)]
    assert backoff.failed("b") == FIRST_SECONDS and "b" in backoff
    backoff.reset("a")
    assert "a" not in backoff and backoff.failed("a") == FIRST_SECONDS


def test_others_have_their_turn_while_many_entries_are_decoded() -> None:
    turns: list[int] = []

    def count() -> None:
        while True:
            turns.append(1)
            eventlet.sleep(0)

    others = eventlet.spawn(count)
    list(read_back.in_turns(time.sleep(TURN_SECONDS / 4) for _ in range(40)))
    others.kill()
    assert len(turns) > 5
