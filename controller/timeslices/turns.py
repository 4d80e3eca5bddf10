"""Who may send when, of what agents report: a policy where links are contended, nothing where they are not.

No sockets and no clock. Coordination is on demand: a pair is coordinated while, on one of its links, senders with a
backlog could together send more than the link carries, and up to `CALM_SECONDS` longer. All others are free. A
destination for which nothing is queued any more is held until its lease is over: who has packets again asks again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from controller.policy.errors import PolicyError
from controller.policy.network.graph import Link, Network
from controller.policy.registry import POLICIES, Kind
from controller.policy.timeslices.timeslice_policy import Directives, Pair, TimeslicePolicy
from host_agent.channel import LEASE_SLICES, MAX_BACKLOGS, MAX_TURNS, BacklogReport, Slice, Turns

CALM_SECONDS = 0.2
SILENT_SECONDS = 1.0
"""An agent that says nothing for so long is forgotten: it gives a sign of life three times as often."""
SIGN_SECONDS = 0.4
"""How often an agent hears from us at least: it registers anew after a second without a word."""

Sending = list[tuple[str, tuple[Turns, ...]]]
"""Agents' addresses, and what each is to be told."""


class TurnKeeper:
    """Hosts are named by their addresses, in the network as in reports. `now` is in seconds and never goes back."""

    def __init__(self, policy: str, slice_seconds: float, network: Network) -> None:
        """Raises UnknownPolicy."""
        self._policy_name = policy
        self._slice_seconds = slice_seconds
        self._backlog: dict[str, set[str]] = {}
        self._contended_at: dict[Pair, float] = {}
        self._coordinated: dict[str, set[str]] = {}
        self._allowed: Directives = {}
        self._told_at: dict[str, float] = {}
        self._heard_at: dict[str, float] = {}
        self._looked_at = 0.0
        self._set_network(network)

    def _set_network(self, network: Network) -> None:
        self._network = network
        self._policy: TimeslicePolicy = POLICIES.make(Kind.TIMESLICES, self._policy_name, network,
                                                      self._slice_seconds)

    @property
    def agents(self) -> Iterable[str]:
        return self._heard_at.keys()

    @property
    def coordinated(self) -> Mapping[str, set[str]]:
        """By sender, the destinations for which it has turns now."""
        return self._coordinated

    def due(self, now: float) -> float:
        """When `pass_time` is to be called, in seconds."""
        return min(self._policy.next_end, now + self._slice_seconds)

    def network_changed(self, network: Network, now: float) -> Sending:
        """All begins anew on another network, with the backlogs that are known."""
        before, self._coordinated = self._coordinated, {}
        self._set_network(network)
        self._allowed = {}
        return self._coordinate(now, {source: set(destinations) for source, destinations in before.items()})

    def reported(self, report: BacklogReport, now: float) -> Sending:
        """An agent's report. A destination that it does not name has nothing queued, unless the report is full."""
        self._heard_at[report.agent] = now
        queued = {each.destination for each in report.backlogs if each.queued_bytes}
        if len(report.backlogs) == MAX_BACKLOGS:
            queued |= self._backlog.get(report.agent, set()) - {each.destination for each in report.backlogs}
        if queued == self._backlog.get(report.agent, set()):
            return []
        self._backlog[report.agent] = queued
        return self._coordinate(now)

    def pass_time(self, now: float) -> Sending:
        """What is due: ends of slices, leases that must not run out, signs of life, agents that are silent."""
        for agent in [agent for agent, heard in self._heard_at.items() if now - heard > SILENT_SECONDS]:
            for known in (self._heard_at, self._told_at, self._backlog, self._allowed):
                known.pop(agent, None)
        changed = set()
        if self._policy.next_end <= now:
            changed = self._obey(self._policy.slice_ended(now))
        if now - self._looked_at >= CALM_SECONDS / 2:
            sending = self._coordinate(now, also=changed)
        else:
            sending = [said for agent in sorted(changed) for said in self._say(agent, (), now)]
        told = {agent for agent, _ in sending}
        for agent in self._heard_at.keys() - told:
            patience = self._slice_seconds if self._coordinated.get(agent) else SIGN_SECONDS
            if now - self._told_at.get(agent, 0.0) >= patience:
                sending += self._say(agent, (), now)
        return sending

    # --- on demand ---

    def _coordinate(self, now: float, dropped: Mapping[str, set[str]] | None = None,
                    also: Iterable[str] = ()) -> Sending:
        """Tell the policy of the pairs that are contended, and agents what comes of it."""
        dropped = defaultdict(set, dropped or {})
        self._looked_at = now
        wanted = self._wanted(now)
        changed = set(also)
        for source in self._coordinated.keys() | wanted.keys():
            before, after = self._coordinated.get(source, set()), wanted.get(source, set())
            if before != after:
                dropped[source] |= before
                self._coordinated[source] = after
                changed |= self._obey(self._policy.backlogged(source, after, now) if source in self._backlog
                                      else self._policy.left(source, now)) | {source}
        changed |= dropped.keys()
        self._coordinated = {source: destinations for source, destinations in self._coordinated.items()
                             if destinations}
        return [said for source in sorted(changed) for said in self._say(source, dropped[source], now)]

    def _wanted(self, now: float) -> dict[str, set[str]]:
        paths = {}
        for source, destinations in self._backlog.items():
            for destination in destinations:
                try:
                    paths[source, destination] = self._policy.paths.of((source, destination))
                except PolicyError:         # not in the network, or not yet
                    continue
        could_send_bps: defaultdict[Link, dict[str, float]] = defaultdict(dict)
        for (source, _), links in paths.items():
            bps = self._policy.paths.carries_bps(links)
            for link in links:
                could_send_bps[link][source] = max(bps, could_send_bps[link].get(source, 0.0))
        contended = {link for link, senders in could_send_bps.items()
                     if len(senders) > 1 and sum(senders.values()) > self._network.capacity_bps(link)}
        self._contended_at = {pair: at for pair, at in self._contended_at.items() if now - at < CALM_SECONDS}
        wanted: defaultdict[str, set[str]] = defaultdict(set)
        for pair, links in paths.items():
            if not contended.isdisjoint(links):
                self._contended_at[pair] = now
            if pair in self._contended_at:
                wanted[pair[0]].add(pair[1])
        return wanted

    # --- what agents are told ---

    def _obey(self, directives: Directives) -> set[str]:
        self._allowed |= directives
        return set(directives)

    def _say(self, agent: str, dropped: Iterable[str], now: float) -> Sending:
        if agent not in self._heard_at:
            return []
        self._told_at[agent] = now
        lease = _microseconds(LEASE_SLICES * self._slice_seconds)
        allowed = self._allowed.get(agent, {})
        held = self._coordinated.get(agent, set())
        turns = [Turns(each, lease, self._slices(allowed[each], lease) if each in allowed else ())
                 for each in sorted(held)]
        queued = self._backlog.get(agent, set())
        turns += [Turns(each, 0 if each in queued else lease) for each in sorted(set(dropped) - held)]
        return [(agent, tuple(turns[first:first + MAX_TURNS])) for first in range(0, max(len(turns), 1), MAX_TURNS)]

    def _slices(self, rate_bps: float, lease: int) -> tuple[Slice, ...]:
        """Without slices that end, a rate holds as long as its lease."""
        has_slices = self._policy.next_end < float("inf")
        return (Slice(0, _microseconds(self._slice_seconds) if has_slices else lease, round(rate_bps)),)


def _microseconds(seconds: float) -> int:
    return max(round(seconds * 1e6), 1)
