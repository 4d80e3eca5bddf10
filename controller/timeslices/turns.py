"""Who may send when, of what agents report: a policy where links are contended, nothing where they are not.

No sockets and no clock. Coordination is on demand: a pair is coordinated while, on one of its links, senders with a
backlog could together send more than the link carries, and up to `CALM_SECONDS` longer. Where packets are lost, all
count that have sent within that time: senders of an incast that wait for timeouts have no backlog together. A
coordinated pair with nothing queued is held: who has packets again asks first, so that answers of many to one request
do not begin with all of them sending.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from math import inf
from typing import Any

from speedwell.controller.policy.errors import UnknownLink
from speedwell.controller.policy.network.graph import Network, Path
from speedwell.controller.policy.registry import POLICIES, Kind
from speedwell.controller.policy.timeslices.contention import contended
from speedwell.controller.policy.timeslices.timeslice_policy import Directives, Pair, TimeslicePolicy
from speedwell.host_agent.channel import (
    LEASE_SLICES,
    MAX_BACKLOGS,
    MAX_SLICES,
    MAX_TURNS,
    Backlog,
    BacklogReport,
    Slice,
    Turns,
)

CALM_SECONDS, LOOK_SECONDS = 1.0, 0.1
SILENT_SECONDS = 1.0
"""An agent that says nothing for so long is forgotten: it gives a sign of life three times as often."""
SIGN_SECONDS = 0.4
"""How often an agent hears from us at least: it registers anew after a second without a word."""

PLAN_AGAIN_SLICES = 1.5
"""After the end of the slice in which a plan of three was told, it is told anew: half a slice before leases end, and
in the middle of a slice, as agents that hear it when a slice begins may have begun by the plan before."""

Sending = list[tuple[str, tuple[Turns, ...]]]
"""Agents' addresses, and what each is to be told."""


def later(turns: Turns, passed_microseconds: int) -> Turns:
    """The same turns, told so long after they were decided: an agent counts from the arrival."""
    slices = []
    for each in turns.slices:
        begin = max(0, each.start_microseconds - passed_microseconds)
        end = each.start_microseconds + each.duration_microseconds - passed_microseconds
        if begin < end:
            slices.append(replace(each, start_microseconds=begin, duration_microseconds=end - begin))
    return replace(turns, slices=tuple(slices))


class TurnKeeper:
    """Hosts are named by their addresses, in the network as in reports. `now` is in seconds and never goes back."""

    def __init__(self, policy: str, slice_seconds: float, network: Network, gives_turns: bool = True) -> None:
        """Raises UnknownPolicy."""
        self._policy_name = policy
        self._gives_turns = gives_turns
        self._slice_seconds = slice_seconds
        self._backlog: dict[str, set[str]] = {}
        self._queued_bytes: dict[str, dict[str, int]] = {}
        self._counts: dict[str, dict[str, Backlog]] = {}
        """What each agent reported last of each destination."""
        self._dropped_packets: dict[str, int] = {}
        self._moved_at: dict[Pair, float] = {}
        self._lossy: set[Pair] = set()
        """Since turns were looked at last."""
        self._held_since: dict[Pair, float] = {}
        """Of those that have turns and no slice."""
        self._contended_at: dict[Pair, float] = {}
        self._coordinated: dict[str, set[str]] = {}
        self._served: dict[str, set[str]] = {}
        """Of the coordinated, the destinations with a backlog: the policy knows these alone."""
        self._allowed: Directives = {}
        self._told_at: dict[str, float] = {}
        self._heard_at: dict[str, float] = {}
        self._looked_at, self._plan_due = 0.0, inf
        self._pins: dict[Pair, Path] = {}
        self._ranks: Mapping[Pair, int] = {}
        self._set_network(network)

    def _set_network(self, network: Network) -> None:
        self._network = network
        self._policy: TimeslicePolicy = POLICIES.make(Kind.TIMESLICES, self._policy_name, network,
                                                      self._slice_seconds)
        self._policy.ranks = self._ranks
        self._pin(self._pins)

    def _pin(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            with suppress(UnknownLink):     # the network that we know is another one than the paths'
                self._policy.paths.pin(pair, self._pins[pair])

    @property
    def agents(self) -> Iterable[str]:
        return self._heard_at.keys()

    @property
    def coordinated(self) -> Mapping[str, set[str]]:
        """By sender, the destinations for which it has turns now."""
        return self._coordinated

    def state(self, now: float, most: int) -> dict[str, Any]:
        """For people to see: so many of the pairs that have turns, those that wait longest first."""
        pairs = sorted(((source, destination) for source, destinations in self._coordinated.items()
                        for destination in destinations), key=lambda pair: (self._held_since.get(pair, now), pair))
        return {"policy": self._policy_name, "slice_seconds": self._slice_seconds, "agents": len(self._heard_at),
                "total": len(pairs), "turns": [{
                    "source": source, "destination": destination,
                    "queued_bytes": self._queued_bytes.get(source, {}).get(destination),
                    "waited_seconds": now - self._held_since.get((source, destination), now),
                    "rate_bps": self._allowed.get(source, {}).get(destination, 0.0)}
                    for source, destination in pairs[:most]]}

    def due(self, now: float) -> float:
        """When `pass_time` is to be called, in seconds."""
        return min(self._policy.next_end, now + self._slice_seconds, self._plan_due)

    def network_changed(self, network: Network, now: float) -> Sending:
        """All begins anew on another network, with the backlogs that are known."""
        before, self._coordinated, self._served = self._coordinated, {}, {}
        self._set_network(network)
        self._allowed = {}
        return self._coordinate(now, before)

    @property
    def pairs(self) -> frozenset[Pair]:
        """Whose paths are of interest: those with something queued, or with turns."""
        backlog = self._backlog if self._gives_turns else {}
        return frozenset((source, destination) for known in (backlog, self._coordinated)
                         for source, destinations in known.items() for destination in destinations)

    def pinned(self, paths: Mapping[Pair, Path], now: float) -> Sending:
        """The network keeps these pairs on these paths. Where that moves one that has turns, all begins anew."""
        moved = [pair for pair, path in paths.items() if self._pins.get(pair) != path]
        self._pins = dict(paths)
        if any(destination in self._coordinated.get(source, ()) for source, destination in moved):
            return self.network_changed(self._network, now)
        self._pin(moved)
        return self._coordinate(now) if moved else []

    def ranked(self, ranks: Mapping[Pair, int]) -> None:
        """In which order coflows are served: for what is decided from now on."""
        self._ranks = self._policy.ranks = ranks

    def reported(self, report: BacklogReport, now: float) -> Sending:
        """An agent's report. A destination that it does not name has nothing queued, unless the report is full."""
        is_lossy = self._count(report, now)
        self._heard_at[report.agent] = now
        self._queued_bytes[report.agent] = {each.destination: each.queued_bytes for each in report.backlogs}
        queued = {each.destination for each in report.backlogs if each.queued_bytes}
        if len(report.backlogs) == MAX_BACKLOGS:
            queued |= self._backlog.get(report.agent, set()) - {each.destination for each in report.backlogs}
        if queued == self._backlog.get(report.agent, set()) and not is_lossy:
            return []
        self._backlog[report.agent] = queued
        self._end_slices(now)
        return self._coordinate(now)

    def _count(self, report: BacklogReport, now: float) -> bool:
        """Note who sends, and whether something was lost: packets that the sender's uplink dropped are one of those
        destinations' to which it sends."""
        known = self._counts.setdefault(report.agent, {})
        dropped = report.dropped_packets > self._dropped_packets.get(report.agent, report.dropped_packets)
        self._dropped_packets[report.agent] = report.dropped_packets
        for each in report.backlogs:
            pair = report.agent, each.destination
            before = known.get(each.destination)
            known[each.destination] = each
            if before is None or each.sent_bytes < before.sent_bytes:   # its count began anew
                before = Backlog(each.destination, 0, 0, 0) if report.agent in self._heard_at else each
            if each.queued_bytes or each.sent_bytes > before.sent_bytes:
                self._moved_at[pair] = now
                if dropped or each.retransmitted_segments > before.retransmitted_segments:
                    self._lossy.add(pair)
        return bool(self._lossy)

    def pass_time(self, now: float) -> Sending:
        """What is due: ends of slices, leases that must not run out, signs of life, agents that are silent."""
        for agent in [agent for agent, heard in self._heard_at.items() if now - heard > SILENT_SECONDS]:
            for known in (self._heard_at, self._told_at, self._backlog, self._queued_bytes, self._allowed,
                          self._counts, self._dropped_packets):
                known.pop(agent, None)
            self._pins = {pair: path for pair, path in self._pins.items() if pair[0] != agent}
            self._contended_at = {pair: at for pair, at in self._contended_at.items() if pair[0] != agent}
        self._end_slices(now)
        sending = self._coordinate(now) if now - self._looked_at >= LOOK_SECONDS else []
        if not sending and now >= self._plan_due:
            sending = self._tell({}, now)
        for agent in self._heard_at.keys() - {agent for agent, _ in sending}:
            if now - self._told_at.get(agent, 0.0) >= SIGN_SECONDS:
                self._told_at[agent] = now
                sending.append((agent, ()))
        return sending

    def _end_slices(self, now: float) -> None:
        while self._policy.next_end <= now:     # as planned, however late we come
            changed = self._policy.slice_ended(max(self._policy.next_end, now - self._slice_seconds))
            self._allowed |= changed
            self._note_held(changed, now)

    def _note_held(self, sources: Iterable[str], now: float) -> None:
        for source in sources:
            for destination in self._served.get(source, ()):
                if destination in self._allowed.get(source, ()):
                    self._held_since.pop((source, destination), None)
                else:
                    self._held_since.setdefault((source, destination), now)

    # --- on demand ---

    def _coordinate(self, now: float, dropped: Mapping[str, set[str]] | None = None) -> Sending:
        """Tell the policy of the pairs that are contended, and agents what comes of it, if anything does."""
        dropped = defaultdict(set, dropped or {})
        self._looked_at = now
        wanted, served = self._wanted(now)
        is_changed = wanted != self._coordinated or bool(dropped)
        for source in self._coordinated.keys() | wanted.keys():
            dropped[source] |= self._coordinated.get(source, set()) - wanted.get(source, set())
            if (after := served.get(source, set())) != self._served.get(source, set()):
                is_changed = True
                self._allowed |= (self._policy.backlogged(source, after, now) if source in self._backlog
                                  else self._policy.left(source, now))
        self._coordinated, self._served = wanted, served
        self._held_since = {pair: at for pair, at in self._held_since.items() if pair[1] in served.get(pair[0], ())}
        self._note_held(served, now)
        return self._tell(dropped, now) if is_changed else []

    def _wanted(self, now: float) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
        """All pairs that are to be coordinated, and those of them that have something queued."""
        queued = [(source, each) for source, destinations in self._backlog.items() for each in destinations
                  if self._gives_turns]
        of_pair = contended(self._policy.paths, self._network, queued)
        self._moved_at = {pair: at for pair, at in self._moved_at.items() if now - at < CALM_SECONDS}
        lossy = contended(self._policy.paths, self._network, self._moved_at, self._lossy) if (
            self._lossy and self._gives_turns) else {}
        self._lossy = set()
        self._contended_at = {pair: at for pair, at in self._contended_at.items() if now - at < CALM_SECONDS} | {
            pair: now for pairs in (of_pair, lossy) for pair, is_contended in pairs.items() if is_contended}
        wanted: defaultdict[str, set[str]] = defaultdict(set)
        served: defaultdict[str, set[str]] = defaultdict(set)
        for source, destination in self._contended_at:
            if (source, destination) in of_pair:
                served[source].add(destination)
            elif destination in self._backlog.get(source, ()):
                continue        # no path leads there
            wanted[source].add(destination)
        return wanted, served

    # --- what agents are told ---

    def _tell(self, dropped: Mapping[str, set[str]], now: float) -> Sending:
        """All that have turns, as each has its own only while all others keep to theirs."""
        slice_end = min(self._policy.next_end, now + self._slice_seconds) if self._coordinated else inf
        self._plan_due = slice_end + PLAN_AGAIN_SLICES * self._slice_seconds
        plan = self._plan(now)
        lease = round(LEASE_SLICES * self._slice_seconds * 1e6)
        sending: Sending = []
        for agent in sorted(self._heard_at.keys() & (self._coordinated.keys() | dropped.keys())):
            self._told_at[agent] = now
            held = self._coordinated.get(agent, set())
            turns = [Turns(each, lease, plan.get((agent, each), ())) for each in sorted(held)]
            turns += [Turns(each, 0) for each in sorted(dropped.get(agent, set()) - held)]
            sending += [(agent, tuple(turns[first:first + MAX_TURNS])) for first in range(0, len(turns), MAX_TURNS)]
        return sending

    def _plan(self, now: float) -> dict[Pair, tuple[Slice, ...]]:
        """What follows until leases are over if nothing changes: so a slice begins on time if we come late."""
        policy = deepcopy(self._policy, {id(shared): shared for shared in (self._network, self._policy.paths,
                                                                      self._policy.ranks)})
        allowed = dict(self._allowed)
        spans: defaultdict[Pair, list[tuple[int, int, int]]] = defaultdict(list)
        at, end = now, now + LEASE_SLICES * self._slice_seconds
        while at < end:
            until = min(policy.next_end, end)
            first, last = round((at - now) * 1e6), round((until - now) * 1e6)
            for pair, rate_bps in [((source, destination), max(round(rate_bps), 1)) for source, to in allowed.items()
                                   for destination, rate_bps in to.items() if first < last]:
                if spans[pair] and spans[pair][-1][1:] == (first, rate_bps):
                    spans[pair][-1] = spans[pair][-1][0], last, rate_bps
                else:
                    spans[pair].append((first, last, rate_bps))
            if until < end:
                allowed |= policy.slice_ended(until)
            at = until
        return {pair: tuple(Slice(first, last - first, rate_bps) for first, last, rate_bps in of_pair[:MAX_SLICES])
                for pair, of_pair in spans.items()}
