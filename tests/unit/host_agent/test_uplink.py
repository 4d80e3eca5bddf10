"""The rules for an uplink, and what is taken over of an agent that died with its guardian."""

from __future__ import annotations

import json
from ipaddress import IPv4Network

import pytest

import speedwell.host_agent.uplink
from speedwell.host_agent.uplink import MARK_MASK, Uplink, mark_of, shape_of

CLASS = "class htb 1:{} {} rate 8Mbit ceil 8Mbit burst 3000b/1 mpu 0b cburst 3000b/1 mpu 0b level 7\n"
LEFT = CLASS.format(1, "root") + "".join(CLASS.format(10 + number, "parent 1:1 leaf") for number in range(8))
JUMPS = ["-A POSTROUTING -o eth0 -m length --length 129:65535 -m connbytes --connbytes 5000: -j SPEEDWELL-GATE",
         "-A POSTROUTING -o eth1 -j SPEEDWELL-CLASS"]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those that were run on a host with what an agent left."""
    commands: list[str] = []

    def run(*command: str, lines: str | None = None) -> str:
        commands.append(" ".join(command))
        return {"tc -j qdisc": json.dumps([{"root": True, "kind": "htb", "handle": "1:"}]), "tc -d class": LEFT,
                "ip -j link": '[{"mtu": 1500}]',
                "iptables -w -t": "\n".join(["-P POSTROUTING ACCEPT", "-A POSTROUTING -j OTHERS", *JUMPS]),
                }.get(" ".join(command[:3]), "")

    monkeypatch.setattr(speedwell.host_agent.uplink, "run", run)
    monkeypatch.setattr(speedwell.host_agent.uplink, "PROGRAMS", {})
    return commands


@pytest.mark.usefixtures("commands")
def test_the_limit_stays_when_the_next_agent_ends() -> None:
    shape = shape_of("eth0")
    assert shape is not None and shape.rate_bps == 8_000_000
    assert shape.lines == ("qdisc replace dev eth0 root handle 1: htb default 1",
                           "class replace dev eth0 parent 1: classid 1:1 htb rate 8Mbit ceil 8Mbit burst 3000b "
                           "cburst 3000b")


def test_every_jump_that_an_earlier_agent_made_goes_and_no_other(commands: list[str]) -> None:
    Uplink("eth0", None, None, 100_000).make()
    assert [each for each in commands if " -D " in each] == [
        f"iptables -w -t mangle -D {jump.removeprefix('-A ')}" for jump in JUMPS]


@pytest.mark.usefixtures("commands")
def test_what_is_small_and_what_is_said_to_go_first_has_the_first_class_unless_it_has_another() -> None:
    rules = Uplink("eth0", None, None, 5000, [IPv4Network("100.64.0.0/10")])._rules().splitlines()
    unmarked = f"-A SPEEDWELL-CLASS -m connmark --mark 0/{MARK_MASK:#x}"
    small = "-m connbytes --connbytes 0:5000 --connbytes-dir both --connbytes-mode bytes"
    assert [rule for rule in rules if rule.startswith(unmarked) and rule.endswith("--set-dscp 7")] == [
        f"{unmarked} {small} -j DSCP --set-dscp 7",
        f"{unmarked} -s 100.64.0.0/10 -j DSCP --set-dscp 7", f"{unmarked} -d 100.64.0.0/10 -j DSCP --set-dscp 7"]
    gate = [each for each in rules if "-A SPEEDWELL-GATE" in each]
    assert gate[:2] == [f"-A SPEEDWELL-GATE -{way} 100.64.0.0/10 -j RETURN" for way in "sd"]


@pytest.mark.usefixtures("commands")
def test_connections_of_the_first_class_pass_the_gate_before_any_destination() -> None:
    gate = [each for each in Uplink("eth0", None, None, 100_000)._rules().splitlines() if "-A SPEEDWELL-GATE" in each]
    assert gate[0] == f"-A SPEEDWELL-GATE -m connmark --mark {mark_of(0):#x}/{MARK_MASK:#x} -j RETURN"
