"""Both ends' memory of what was said, so that nothing old or foreign is believed. No clock, no sockets, no chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial

from speedwell.host_agent.channel import (
    Backlog,
    BacklogReport,
    Directive,
    FlowClass,
    FlowClasses,
    Message,
    Registration,
    Turns,
    Welcome,
    agent_key,
    agent_of,
    decode,
    encode,
)
from speedwell.host_agent.errors import InvalidDatagram

MAX_AGENTS = 4096
"""Whose keys are kept at hand."""
MAX_OFFERS, OFFER_SECONDS = 4, 1.0
"""Epochs of one agent that no report has taken up, and how long none displaces them: a replayed registration must not
displace a real one."""


class _Heard:
    """The datagrams of an epoch: of each kind only later ones are news."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._latest: dict[type, int] = {}

    def take(self, message: Directive | FlowClasses | BacklogReport) -> None:
        if message.epoch != self.epoch:
            raise InvalidDatagram("foreign", "it is of another epoch")
        if message.sequence <= self._latest.get(type(message), 0):
            raise InvalidDatagram("replayed", f"number {message.sequence} or a later one was seen")
        self._latest[type(message)] = message.sequence


class AgentEnd:
    """An agent's end. `refused` counts datagrams by reason."""

    def __init__(self, agent: str, key: bytes, uplink_bps: int) -> None:
        self.agent = agent
        self.refused: Counter[str] = Counter()
        self.slice_microseconds = 0
        self._key = key
        self._uplink_bps = uplink_bps
        self._nonce: bytes | None = None
        self._heard: _Heard | None = None
        self._sequence = 0

    @property
    def is_registered(self) -> bool:
        return self._heard is not None

    def register(self, nonce: bytes) -> bytes:
        """The registration to send, with a nonce never used before. It ends the epoch before."""
        self._nonce, self._heard = nonce, None
        return encode(Registration(self.agent, nonce, self._uplink_bps), self._key)

    def report(self, dropped_packets: int, backlogs: Sequence[Backlog]) -> bytes:
        """The next report to send. Raises InvalidDatagram unless registered."""
        if self._heard is None:
            raise InvalidDatagram("foreign", "the agent is not registered")
        self._sequence += 1
        return encode(BacklogReport(self.agent, self._heard.epoch, self._sequence, dropped_packets,
                                    tuple(backlogs)), self._key)

    def take(self, datagram: bytes) -> Welcome | Directive | FlowClasses | None:
        """What the scheduler says; None, and counted, if that is not to be believed."""
        try:
            return self._believed(decode(datagram, self._key))
        except InvalidDatagram as refusal:
            self.refused[refusal.reason] += 1
            return None

    def _believed(self, message: Message) -> Welcome | Directive | FlowClasses:
        if message.agent != self.agent or isinstance(message, Registration | BacklogReport):
            raise InvalidDatagram("foreign", "it is not for this agent")
        if isinstance(message, Welcome):
            if message.nonce != self._nonce:
                raise InvalidDatagram("replayed", "it answers another registration")
            self._nonce, self._heard, self._sequence = None, _Heard(message.epoch), 0
            self.slice_microseconds = message.slice_microseconds
            return message
        if self._heard is None:
            raise InvalidDatagram("foreign", "the agent is not registered")
        self._heard.take(message)
        return message


class SchedulerEnd:
    """The scheduler's end, for all agents. `refused` counts datagrams by reason.

    A registration changes nothing until a report of its epoch comes: one that is replayed has no consequence.
    """

    def __init__(self, master_key: bytes, slice_microseconds: int) -> None:
        self.refused: Counter[str] = Counter()
        self._slice_microseconds = slice_microseconds
        self._offered: dict[str, dict[bytes, tuple[_Heard, float]]] = {}
        """By agent and nonce, with when it was offered, the oldest first."""
        self._heard: dict[str, _Heard] = {}
        self._sequences: Counter[str] = Counter()
        self._key = lru_cache(MAX_AGENTS)(partial(agent_key, master_key))

    def take(self, datagram: bytes) -> Registration | BacklogReport | None:
        """What an agent says; None, and counted, if that is not to be believed. A registration is to be answered."""
        try:
            agent = agent_of(datagram)
            message = decode(datagram, self._key(agent))
            if isinstance(message, BacklogReport):
                self._take_report(message)
            elif not isinstance(message, Registration):
                raise InvalidDatagram("foreign", "it is a scheduler's own")
            return message
        except InvalidDatagram as refusal:
            self.refused[refusal.reason] += 1
            return None

    def _take_report(self, report: BacklogReport) -> None:
        for offered, _ in self._offered.get(report.agent, {}).values():
            if offered.epoch == report.epoch:
                self._heard[report.agent] = offered
                self._sequences[report.agent] = 0
                del self._offered[report.agent]
                break
        if report.agent not in self._heard:
            raise InvalidDatagram("foreign", "the agent is not registered")
        self._heard[report.agent].take(report)

    def welcome(self, registration: Registration, epoch: int, now: float) -> bytes | None:
        """The answer to a registration: with an epoch never used before, or its own again if it is a replayed one.
        None, and counted, where offers younger than OFFER_SECONDS leave no place for another."""
        offers = self._offered.setdefault(registration.agent, {})
        if registration.nonce not in offers and len(offers) == MAX_OFFERS:
            oldest, (_, offered_at) = next(iter(offers.items()))
            if now - offered_at < OFFER_SECONDS:
                self.refused["crowded"] += 1
                return None
            del offers[oldest]
        offer, _ = offers.setdefault(registration.nonce, (_Heard(epoch), now))
        return encode(Welcome(registration.agent, offer.epoch, registration.nonce, self._slice_microseconds),
                      self._key(registration.agent))

    def directive(self, agent: str, turns: Sequence[Turns]) -> bytes:
        """The next directive to send. Raises InvalidDatagram if no report of the agent has come yet."""
        return encode(Directive(agent, *self._next(agent), tuple(turns)), self._key(agent))

    def flow_classes(self, agent: str, flows: Sequence[FlowClass]) -> bytes:
        """The next classes to send. Raises InvalidDatagram if no report of the agent has come yet."""
        return encode(FlowClasses(agent, *self._next(agent), tuple(flows)), self._key(agent))

    def forget(self, agent: str) -> None:
        """An agent that is silent: it registers anew if it comes back."""
        self._offered.pop(agent, None)
        self._heard.pop(agent, None)

    def _next(self, agent: str) -> tuple[int, int]:
        if agent not in self._heard:
            raise InvalidDatagram("foreign", f"agent {agent} is not registered")
        self._sequences[agent] += 1
        return self._heard[agent].epoch, self._sequences[agent]
