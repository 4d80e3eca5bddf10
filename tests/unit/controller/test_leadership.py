"""Who leads of two controllers, and what the switches are asked: decisions on a clock that the test sets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest
from ryu.ofproto import ofproto_v1_3 as ofproto
from ryu.ofproto import ofproto_v1_3_parser as parser

from speedwell.controller.errors import ControllerError
from speedwell.controller.leadership import Leadership, Role, Standing
from speedwell.controller.loops import Loops
from speedwell.controller.settings import InvalidSettings, load_settings
from speedwell.controller.switches.roles import MOST_OF_A_SWITCH, Roles
from speedwell.controller.tenure import PATIENCE_SECONDS, Tenure
from speedwell.fs import logs

LEADER, OTHER = "http://10.0.0.1:8080", "http://10.0.0.2:8080"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_controller_without_etcd_leads_and_asks_for_no_role() -> None:
    leadership = Leadership()
    assert leadership.leads and leadership.role is None and not leadership.is_deposed


def test_a_standby_knows_the_leader_and_is_its_switches_slave() -> None:
    leadership = Leadership(is_alone=False)
    assert leadership.role is None and not leadership.leads
    leadership.told(Standing(LEADER, 7))
    assert (leadership.leader, leadership.role) == (LEADER, Role(is_master=False, generation=7))
    assert not leadership.is_deposed


def test_who_leads_is_deposed_for_good_when_its_time_is_over() -> None:
    clock = Clock()
    leadership = Leadership(is_alone=False, clock=clock)
    leadership.told(Standing(OTHER, 8, clock.now + 1))
    assert leadership.leads and leadership.role == Role(is_master=True, generation=8)
    clock.now += 1
    assert leadership.is_deposed and leadership.role is None
    leadership.told(Standing(OTHER, 8, clock.now + 1))
    assert leadership.is_deposed and not leadership.leads, "a late renewal must not bring a lead back"


def test_a_lead_of_another_generation_deposes() -> None:
    leadership = Leadership(is_alone=False, clock=(clock := Clock()))
    leadership.told(Standing(OTHER, 8, clock.now + 1))
    leadership.told(Standing(OTHER, 9, clock.now + 1))
    assert leadership.is_deposed


def test_a_lead_that_was_over_before_it_was_told_of_is_none() -> None:
    leadership = Leadership(is_alone=False, clock=(clock := Clock()))
    leadership.told(Standing(OTHER, 8, clock.now - 1))
    assert not leadership.leads and not leadership.is_deposed


def test_what_the_keeper_says_comes_through_the_socket_whole() -> None:
    standing = Standing(LEADER, 1 << 60, 12.5)
    assert Standing.decode(standing.encode()) == standing


def test_the_keeper_of_the_lease_logs_in_the_form_that_all_processes_do() -> None:
    controller, keepers = socket.socketpair()
    given = {"etcd": ["127.0.0.1:1"], "prefix": "/", "url": LEADER, "identity": "", "log_level": "info"}
    with controller, keepers, subprocess.Popen(
            [sys.executable, "-m", "speedwell.controller.lease_keeper", json.dumps(given)], stdin=keepers.fileno(),
            stderr=subprocess.PIPE, env={**os.environ, logs.FORMAT_VARIABLE: "json"}) as keeper:
        assert keeper.stderr is not None
        assert "127.0.0.1:1 does not answer" in json.loads(keeper.stderr.readline())["message"]
        controller.shutdown(socket.SHUT_RDWR)
        assert keeper.wait(60) == 0


def led(beat_at: float, lease_at: float, lease_seconds: float = 2.0) -> Tenure:
    tenure = Tenure()
    tenure.beat(beat_at)
    tenure.leased(5, lease_at, lease_seconds)
    assert tenure.holds(5, generation=3)
    return tenure


def test_a_lead_ends_with_the_lease_or_the_last_beat_whichever_is_first() -> None:
    assert led(10.0, lease_at=10.0, lease_seconds=0.5).until == 10.5
    tenure = led(10.0, lease_at=10.0)
    assert tenure.until == 10.0 + PATIENCE_SECONDS
    assert tenure.is_fit(tenure.until - 0.01) and not tenure.is_fit(tenure.until)
    tenure.beat(9.0)
    assert tenure.until == 10.0 + PATIENCE_SECONDS, "an older beat takes nothing back"


def test_a_lease_that_ended_ends_the_lead() -> None:
    tenure = led(10.0, lease_at=10.0)
    tenure.leased(5, 10.1, 0.0)
    assert (tenure.until, tenure.lease) == (0.0, 0) and not tenure.is_fit(10.1)


def test_a_key_of_another_lease_makes_nobody_else_lead() -> None:
    tenure = led(10.0, lease_at=10.0)
    assert not tenure.holds(6, generation=4) and tenure.until == 0.0
    assert not Tenure().holds(0, generation=4), "a key without a lease is nobody's"


class Connection:
    ofproto, ofproto_parser = ofproto, parser
    id = 1

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.is_backed_up = self.is_closed = False

    def send_msg(self, message: Any) -> bool:
        self.sent.append(message)
        return True

    def close(self) -> None:
        self.is_closed = True

    @property
    def roles(self) -> list[tuple[int, int]]:
        return [(message.role, message.generation_id) for message in self.sent]


def test_switches_are_led_once_they_were_asked_to_take_us_for_their_master() -> None:
    leadership, connection = Leadership(is_alone=False, clock=(clock := Clock())), Connection()
    led: list[Any] = []
    roles = Roles(leadership, Loops(), lambda datapath: led.append((datapath, list(connection.roles))))
    leadership.told(Standing(LEADER, 7))
    roles.shook_hands(connection)
    assert connection.roles == [(ofproto.OFPCR_ROLE_SLAVE, 7)] and not led
    leadership.told(Standing(LEADER, 7))
    assert len(connection.sent) == 1, "nothing new is asked again"
    leadership.told(Standing(OTHER, 8, clock.now + 1))
    eventlet.sleep(0)
    assert led == [(connection, [(ofproto.OFPCR_ROLE_SLAVE, 7), (ofproto.OFPCR_ROLE_MASTER, 8)])]


def test_a_switch_that_left_or_cannot_be_asked_is_not_led() -> None:
    leadership, led = Leadership(is_alone=False, clock=(clock := Clock())), list[Any]()
    roles = Roles(leadership, Loops(), led.append)
    gone, stuck = Connection(), Connection()
    for connection in (gone, stuck):
        roles.shook_hands(connection)
    roles.ended(gone)
    stuck.is_backed_up = True
    leadership.told(Standing(OTHER, 8, clock.now + 1))
    eventlet.sleep(0)
    assert led == [] and stuck.is_closed and not gone.sent


def test_a_standby_keeps_few_connections_that_say_they_are_one_switch_and_none_that_ended() -> None:
    leadership = Leadership(is_alone=False, clock=Clock())
    roles = Roles(leadership, Loops(), lambda datapath: None)
    several = [Connection() for _ in range(10_000)]
    for connection in several:
        roles.shook_hands(connection)
    kept = [connection for connection in several if not connection.is_closed]
    assert len(kept) == MOST_OF_A_SWITCH
    for connection in several:
        roles.ended(connection)
    assert not roles._waiting


def test_a_switch_that_fails_waits_or_leaves_meanwhile_keeps_no_other_from_being_led() -> None:
    leadership, led, loops = Leadership(is_alone=False, clock=(clock := Clock())), list[Any](), Loops()
    failing, waiting, leaving, last = (Connection() for _ in range(4))

    def lead(datapath: Any) -> None:
        if datapath is failing:
            roles.ended(leaving)
            raise ControllerError("it does not read")
        if datapath is waiting:
            eventlet.sleep(3600)
        led.append(datapath)

    roles = Roles(leadership, loops, lead)
    for connection in (failing, waiting, leaving, last):
        roles.shook_hands(connection)
    leadership.told(Standing(OTHER, 8, clock.now + 1))
    eventlet.sleep(0)
    assert led == [last] and failing.is_closed and not leaving.sent
    [trouble] = loops.troubles()
    assert "it does not read" in trouble.problem


def test_a_leader_tells_of_a_switch_that_knows_a_later_generation() -> None:
    leadership, loops = Leadership(is_alone=False, clock=(clock := Clock())), Loops()
    roles = Roles(leadership, loops, lambda datapath: None)
    error = SimpleNamespace(type=ofproto.OFPET_ROLE_REQUEST_FAILED, datapath=SimpleNamespace(id=1))
    roles.refused(error)
    assert loops.troubles() == [], "a standby is late now and then"
    leadership.told(Standing(OTHER, 8, clock.now + 1))
    roles.refused(error)
    [trouble] = loops.troubles()
    assert ControllerError.__name__ in trouble.problem and "later generation" in trouble.problem


@pytest.mark.parametrize(("given", "what"), [
    ({"etcd": "10.0.0.9"}, "setting 'etcd.0': etcd: '10.0.0.9' is not HOST:PORT"),
    ({"etcd": "10.0.0.9:2379", "rest_port": 0}, "set openflow_port and rest_port"),
    ({"etcd": "10.0.0.9:2379", "rest_host": "0.0.0.0"}, "url is missing"),
    ({"url": "10.0.0.1:8080"}, "setting 'url'"),
])
def test_settings_that_no_other_controller_or_client_could_use_are_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidSettings, match="^" + what.replace("[", r"\[")):
        load_settings(**given)


def test_settings_tell_others_where_this_controller_is() -> None:
    assert load_settings(etcd="a:1,b:2").etcd == ("a:1", "b:2")
    assert load_settings(rest_host="10.0.0.1").url_for_others == "http://10.0.0.1:8080"
    assert load_settings(rest_host="fd00::1").url_for_others == "http://[fd00::1]:8080"
    assert load_settings(rest_host="0.0.0.0", url="https://a:1").url_for_others == "https://a:1"
