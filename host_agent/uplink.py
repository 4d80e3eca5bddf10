"""What the agent makes of a host's uplink: HTB classes, rules that take marks to them, and their end."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any

from speedwell.fs.wire.turns import MARK as OWN_MARK
from speedwell.host_agent import netlink
from speedwell.host_agent.channel import PRIORITIES
from speedwell.host_agent.class_shares import IN_ORDER, ClassShare
from speedwell.host_agent.errors import KernelRefused, MissingRequirement

MARK_SHIFT, MARK_MASK = 24, 0x0F000000
"""Where in a connection's mark its class is; the other bits are others'."""
CLASS_CHAIN, GATE_CHAIN = "SPEEDWELL-CLASS", "SPEEDWELL-GATE"
FIRST_QUEUE = 5300
"""The NFQUEUE that no packet comes to. It is an agent's as long as it runs, and shows that there can be one."""
BURST_SECONDS, LEAST_BURST_BYTES = 0.001, 1600
"""What the uplink may make up for: more would leave in one go at the begin of a slice, and wait in the last port."""
ACK_BYTES = 128
"""Packets up to this size pass the gate: acknowledgements carry no more."""
_HANDLE, _WHOLE = "1:", "1:1"
NETLINK_ROUTE = 0
_NEW_QDISC, _GET_QDISC = 36, 38
_QDISC, _STATS, _DROPS = struct.Struct("=B3xiIII"), 3, struct.Struct("=12xI")
"""`struct tcmsg`, and `drops` in `struct tc_stats` (linux/rtnetlink.h, linux/gen_stats.h)."""
_ROOT = 0xFFFFFFFF
PROGRAMS = {"iptables": "iptables", "tc": "iproute2", "ip": "iproute2"}


def mark_of(priority: int) -> int:
    """The mark of connections of a priority; 0 is no mark."""
    return (priority + 1) << MARK_SHIFT


def dscp_of(priority: int) -> int:
    """The DSCP of packets of a priority. Its low three bits are the traffic class between switches."""
    return PRIORITIES - 1 - priority


def socket_priority(priority: int) -> int:
    """The SO_PRIORITY by which a sender with CAP_NET_ADMIN enters a class of the uplink itself."""
    return 0x10000 | 0x10 + dscp_of(priority)


def run(*command: str | int, lines: str | None = None) -> str:
    """A command's output. Raises KernelRefused with what it complains of, MissingRequirement."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, input=lines, capture_output=True, text=True, check=False, timeout=10)
    except FileNotFoundError:
        raise MissingRequirement(f"{words[0]} is missing: apt-get install {PROGRAMS[words[0]]}") from None
    except subprocess.TimeoutExpired:
        raise KernelRefused(f"{' '.join(words)}: no answer within 10 s") from None
    if done.returncode:
        complaint = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise KernelRefused(f"{' '.join(words)}: {complaint}")
    return done.stdout


def try_to_run(*command: str | int, lines: str | None = None) -> None:
    """As `run`; what goes wrong is of no consequence."""
    with suppress(KernelRefused):
        run(*command, lines=lines)


@dataclass(frozen=True, slots=True)
class Shape:
    """How the uplink was limited before: an HTB with one class, as emulated hosts have, or not at all."""

    rate_bps: int
    queue_packets: int | None
    lines: tuple[str, ...]
    """For `tc -batch`: what makes it so again."""


def shape_of(interface: str) -> Shape | None:
    """None where nothing limits it. Raises KernelRefused for a qdisc that the agent would not bring back."""
    qdiscs = json.loads(run("tc", "-j", "qdisc", "show", "dev", interface))
    root = next((each for each in qdiscs if each.get("root")), None)
    if root is None or root["handle"] == "0:":      # the kernel's own choice
        return None
    classes = [line.split() for line in run("tc", "-d", "class", "show", "dev", interface).splitlines()]
    whole = next((each for each in classes if each[2:4] == [_WHOLE, "root"]), None)
    if root["kind"] == "htb" and root["handle"] == _HANDLE and whole is not None:
        leaves = [each for each in qdiscs if each.get("parent") == _WHOLE]
        if len(classes) == 1 and all(each["kind"] == "pfifo" for each in leaves):
            return _single_class(interface, whole, leaves)
        if {each[2] for each in classes} == {_WHOLE, *(f"{_HANDLE}1{number}" for number in range(PRIORITIES))}:
            return _single_class(interface, whole, [])      # of an agent that died with its guardian
    raise KernelRefused(f"{interface} has a qdisc of its own ({root['kind']} {root['handle']}), which the agent "
                        f"would not bring back: remove it first (tc qdisc del dev {interface} root)")


def _single_class(interface: str, words: list[str], leaves: list[dict[str, Any]]) -> Shape:
    """`class htb 1:1 root leaf 10: prio 0 quantum 9000 rate 20Mbit ceil 20Mbit ... burst 9000b/1 ... cburst ...`"""
    values = {name: words[words.index(name) + 1].partition("/")[0]
              for name in ("quantum", "rate", "ceil", "burst", "cburst") if name in words}
    lines = [f"qdisc replace dev {interface} root handle {_HANDLE} htb default 1",
             f"class replace dev {interface} parent {_HANDLE} classid {_WHOLE} htb "
             + " ".join(f"{name} {value}" for name, value in values.items())]
    limit = None
    for leaf in leaves:
        limit = int(leaf["options"]["limit"])
        lines.append(f"qdisc replace dev {interface} parent {_WHOLE} handle {leaf['handle']} pfifo limit {limit}")
    return Shape(_bits(values["rate"]), limit, tuple(lines))


def _bits(text: str) -> int:
    units = {"Kbit": 1_000, "Mbit": 1_000_000, "Gbit": 1_000_000_000, "bit": 1}
    unit = next(unit for unit in units if text.endswith(unit))
    return round(float(text.removesuffix(unit)) * units[unit])


class Uplink:
    """The rules and classes on one interface. Nothing is made before `make`."""

    def __init__(self, interface: str, rate_bps: int | None, queue_packets: int | None, threshold_bytes: int,
                 first: Sequence[IPv4Network] = (), shares: Sequence[ClassShare] = IN_ORDER) -> None:
        """`rate_bps` None: what limits the interface today. `first`: flows to and from these go first and are not
        held, however large they are. `shares` are those of the classes from 0 on. Raises MissingRequirement,
        KernelRefused."""
        for program, package in PROGRAMS.items():
            if shutil.which(program) is None:
                raise MissingRequirement(f"{program} is missing: apt-get install {package}")
        self.interface = interface
        self._before = shape_of(interface)
        if rate_bps is None and self._before is None:
            raise KernelRefused(f"nothing limits {interface} today: give its bits a second with --rate")
        self.rate_bps = rate_bps or (self._before.rate_bps if self._before else 0)
        self._queue_packets = queue_packets or (self._before.queue_packets if self._before else None) or 50
        self._threshold_bytes = threshold_bytes
        self._first = first
        self._shares = shares
        self._frame_bytes = int(json.loads(run("ip", "-j", "link", "show", "dev", interface))[0]["mtu"])

    @property
    def undoing(self) -> list[tuple[list[str], str]]:
        """Commands, each with its input, that leave the interface as it was."""
        remove = [(["iptables", "-w", "-t", "mangle", "-D", "POSTROUTING", "-o", self.interface, *tail], "")
                  for tail in self._jumps()]
        chains = [(["iptables", "-w", "-t", "mangle", flag, chain], "")
                  for chain in (GATE_CHAIN, CLASS_CHAIN) for flag in ("-F", "-X")]
        before = "\n".join(self._before.lines) if self._before else ""
        return [*remove, *chains, (["tc", "qdisc", "del", "dev", self.interface, "root"], ""),
                *([(["tc", "-batch", "-"], before)] if before else [])]

    def _jumps(self) -> list[list[str]]:
        return [["-m", "length", "--length", f"{ACK_BYTES + 1}:65535", "-m", "connbytes", "--connbytes",
                 f"{self._threshold_bytes}:", "--connbytes-dir", "both", "--connbytes-mode", "bytes",
                 "-j", GATE_CHAIN], ["-j", CLASS_CHAIN]]

    def make(self) -> None:
        """Rules and classes; what an agent that died with its guardian left is removed before. Raises KernelRefused,
        with nothing left behind."""
        for rule in run("iptables", "-w", "-t", "mangle", "-S", "POSTROUTING").splitlines():
            if rule.endswith((f"-j {GATE_CHAIN}", f"-j {CLASS_CHAIN}")):
                try_to_run("iptables", "-w", "-t", "mangle", "-D", *rule.split()[1:])
        try:
            run("iptables-restore", "-w", "--noflush", lines=self._rules())
            if self._before:
                run("tc", "qdisc", "del", "dev", self.interface, "root")
            run("tc", "-batch", "-", lines="\n".join(self._classes()))
        except KernelRefused:
            self.undo()
            raise

    def undo(self) -> None:
        """Take all of it away."""
        for command, lines in self.undoing:
            try_to_run(*command, lines=lines)

    def _rules(self) -> str:
        classes = [f"-A {CLASS_CHAIN} -m connmark --mark {mark_of(priority):#x}/{MARK_MASK:#x} "
                   f"-j DSCP --set-dscp {dscp_of(priority)}" for priority in range(PRIORITIES)]
        unmarked = f"-A {CLASS_CHAIN} -m connmark --mark 0/{MARK_MASK:#x}"
        foreign = f"{unmarked} -m dscp ! --dscp 0 -j DSCP --set-dscp 0"
        networks = [way for network in self._first for way in (f"-s {network}", f"-d {network}")]
        small = f"-m connbytes --connbytes 0:{self._threshold_bytes} --connbytes-dir both --connbytes-mode bytes"
        first = [f"{unmarked} {which} -j DSCP --set-dscp {dscp_of(0)}" for which in (small, *networks)]
        pass_by = [f"-A {GATE_CHAIN} {which} -j RETURN" for which in networks]
        never = f"-A {GATE_CHAIN} -m connmark --mark {mark_of(0):#x}/{MARK_MASK:#x} -j RETURN"
        own = f"-A {GATE_CHAIN} -m mark --mark {OWN_MARK:#x}/{OWN_MARK:#x} -j RETURN"
        probe = f"-A {GATE_CHAIN} -d 0.0.0.0 -j NFQUEUE --queue-num {FIRST_QUEUE} --queue-bypass"
        jumps = [f"-A POSTROUTING -o {self.interface} {' '.join(jump)}" for jump in reversed(self._jumps())]
        return "\n".join(["*mangle", f":{CLASS_CHAIN} - [0:0]", f":{GATE_CHAIN} - [0:0]", foreign, *first, *classes,
                          *pass_by, never, own, probe, *jumps, "COMMIT", ""])

    def _classes(self) -> list[str]:
        device, rate, limit = f"dev {self.interface}", self.rate_bps, self._queue_packets * self._frame_bytes
        burst = max(LEAST_BURST_BYTES, round(rate * BURST_SECONDS / 8))
        tail = f"ceil {rate}bit burst {burst} cburst {burst} quantum {self._frame_bytes}"
        lines = [f"qdisc replace {device} root handle {_HANDLE} htb default 10",
                 f"class replace {device} parent {_HANDLE} classid {_WHOLE} htb rate {rate}bit {tail}"]
        for number, own in reversed(list(enumerate(self._shares))):
            lines += [f"class replace {device} parent {_WHOLE} classid 1:1{number} htb "
                      f"rate {max(8, round(rate * own.share))}bit {tail} prio {own.precedence}",
                      f"qdisc replace {device} parent 1:1{number} handle 1{number}: bfifo limit {limit}"]
            if number:
                lines.append(f"filter add {device} parent {_HANDLE} protocol ip prio 1 u32 "
                             f"match ip dsfield {number << 2:#x} 0xfc flowid 1:1{number}")
        return lines


def gate_rule(destination: str, queue: int, is_wanted: bool) -> None:
    """Send large flows to a destination into a queue, or no longer. Raises KernelRefused."""
    try:
        run("iptables", "-w", "-t", "mangle", "-A" if is_wanted else "-D", GATE_CHAIN, "-d", destination,
            "-j", "NFQUEUE", "--queue-num", queue, "--queue-bypass")
    except KernelRefused:
        if is_wanted or f"-A {GATE_CHAIN} -d {destination}/32 " in run("iptables", "-w", "-t", "mangle", "-S"):
            raise       # if not, somebody else has taken the rule away


class UplinkCounters:
    """What has gone out by an interface since it came up."""

    def __init__(self, interface: str) -> None:
        """Raises KernelRefused, OSError."""
        self._name = interface.encode() + b":"
        self._index = socket.if_nametoindex(interface)
        self._devices = os.open("/proc/self/net/dev", os.O_RDONLY | os.O_CLOEXEC)
        self._routing = netlink.connect(NETLINK_ROUTE)
        self._routing.settimeout(1.0)

    def sent_bytes(self) -> int:
        """Raises KernelRefused if the interface is gone."""
        for line in os.pread(self._devices, 1 << 16, 0).splitlines():
            if line.lstrip().startswith(self._name):
                return int(line.partition(b":")[2].split()[8])
        raise KernelRefused(f"interface {self._name[:-1].decode()} is gone")

    def dropped_packets(self) -> int:
        """By its queues."""
        self._routing.send(netlink.message(_GET_QDISC, netlink.REQUEST | netlink.DUMP,
                                           _QDISC.pack(socket.AF_UNSPEC, self._index, 0, 0, 0)))
        dropped, is_done = 0, False
        while not is_done:
            for kind, _, body in netlink.messages(self._routing.recv(netlink.RECEIVE_BYTES)):
                is_done |= kind in (netlink.DONE, netlink.ERROR)
                if kind == _NEW_QDISC:
                    _, index, _, parent, _ = _QDISC.unpack_from(body)
                    if index == self._index and parent == _ROOT:
                        dropped = next((_DROPS.unpack_from(body, begin)[0] for name, begin, _ in
                                        netlink.attributes(body, _QDISC.size) if name == _STATS), 0)
        return dropped
