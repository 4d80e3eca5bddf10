"""Finding the hosts of a read's replicas, without letting it wait for those that do not answer."""

from __future__ import annotations

from typing import Any

from ryu.lib import hub

from speedwell.controller.errors import ControllerError, UnknownHost
from speedwell.controller.loops import Loops
from speedwell.controller.policy.reads.selection_request import Replica
from speedwell.controller.reads.book import ReadRequest
from speedwell.controller.topology.state import NetworkState

LOCATE_SECONDS = 1.0
"""How long an unknown host may take to answer to ARP."""


class ReplicaSearch:
    """Requests that want the same host share the search for it."""

    def __init__(self, state: NetworkState, loops: Loops) -> None:
        self._state = state
        self._loops = loops
        self._searches: dict[str, Any] = {}

    def locate(self, hosts: Any, wanted: ReadRequest) -> list[Replica]:
        """The replicas whose place is known; the others are searched for, and waited for only if none is known.

        `hosts` is the application that locates. Raises UnknownHost.
        """
        hosts.locate(wanted.client, LOCATE_SECONDS)
        # A policy knows hosts, not ports: of several dataservers on one host the first is meant.
        by_host = {replica.host: replica for replica in reversed(wanted.replicas)}
        known = self._state.hosts
        if all(host in known for host in by_host):
            return [by_host[host] for host in reversed(by_host)]
        found = hub.Queue()
        for host in by_host:
            if host in self._state.hosts:
                found.put(host)
            else:
                self._search(hosts, host).link(lambda _, host=host: found.put(host))
        for _ in by_host:
            if found.get() in self._state.hosts:
                return [by_host[host] for host in reversed(by_host) if host in self._state.hosts]
        raise UnknownHost(" or ".join(reversed(by_host)))

    def _search(self, hosts: Any, host: str) -> Any:
        def search() -> None:
            try:
                hosts.locate(host, LOCATE_SECONDS)
            except ControllerError:
                pass
            finally:
                del self._searches[host]

        if host not in self._searches:
            self._searches[host] = self._loops.spawn(search)
        return self._searches[host]
