"""Waiting until a controller knows the whole of an emulated fabric, asked over its REST interface."""

import contextlib
from collections.abc import Callable

import requests

from speedwell.topo.emulation.errors import NotDiscovered
from speedwell.topo.fabric import Fabric
from speedwell.topo.waiting import wait_for

DISCOVERY_TIMEOUT_SECONDS = 45.0
FULL_SECONDS = 5.0
"""After so long nobody waits for a switch that is full: the others have what was planned."""

FLOW_TABLES = "flow tables of "
"""How the controller's health calls those of a switch that is full."""

_REQUEST_TIMEOUT_SECONDS = 2.0


def wait_for_network(controller_url: str, fabric: Fabric, session: requests.Session | None = None) -> None:
    """Wait until the controller holds every switch and switch-to-switch link of `fabric`.

    Raises `NotDiscovered`, saying what is missing, after DISCOVERY_TIMEOUT_SECONDS.
    """
    hosts = {host.name for host in fabric.hosts}
    wanted = (len(fabric.switches), 2 * sum(link.a not in hosts and link.b not in hosts for link in fabric.links))
    seen = (0, 0)
    asking = session or requests.Session()

    def complete() -> bool:
        nonlocal seen
        try:
            network = asking.get(f"{controller_url}/v1/network", timeout=_REQUEST_TIMEOUT_SECONDS).json()
        except (requests.RequestException, ValueError):
            return False
        connected = [switch for switch in network["switches"] if switch["connected"]]
        between_switches = [link for link in network["links"]
                            if "." not in link["source"] and "." not in link["destination"]]
        seen = (len(connected), len(between_switches))
        return seen == wanted

    if not wait_for(complete, DISCOVERY_TIMEOUT_SECONDS):
        raise NotDiscovered(f"the controller found {seen[0]} of {wanted[0]} switches and {seen[1]} of {wanted[1]} "
                            f"directed links in {DISCOVERY_TIMEOUT_SECONDS:g} s; see its log")


def wait_for_hosts(controller_url: str, fabric: Fabric, session: requests.Session | None = None,
                   warn: Callable[[str], None] | None = None) -> None:
    """Wait until the controller knows where every host of `fabric` is, as it chooses among replicas it knows, and the
    switches hold what it planned for them. Where some cannot, as their tables are full, `warn` is told, if there is
    one, and that is enough.

    Raises `NotDiscovered`, naming some that are missing, after DISCOVERY_TIMEOUT_SECONDS.
    """
    missing = {host.ip for host in fabric.hosts}
    is_converged = False
    full: list[str] = []
    asking = session or requests.Session()

    def complete() -> bool:
        nonlocal is_converged, full
        is_converged, full = False, []  # also if nobody answers: what was said before the hosts were known is void
        with contextlib.suppress(requests.RequestException, ValueError):
            hosts = asking.get(f"{controller_url}/v1/hosts", timeout=_REQUEST_TIMEOUT_SECONDS).json()["hosts"]
            missing.difference_update(host["ip"] for host in hosts)
            health = asking.get(f"{controller_url}/v1/health", timeout=_REQUEST_TIMEOUT_SECONDS).json()
            is_converged = bool(health["converged"])
            full = [trouble["name"] for trouble in health["troubles"] if trouble["name"].startswith(FLOW_TABLES)
                    and trouble["age_seconds"] >= FULL_SECONDS]
        return not missing and (is_converged or (warn is not None and bool(full)))

    if not wait_for(complete, DISCOVERY_TIMEOUT_SECONDS):
        if not missing:
            raise NotDiscovered("the switches have not confirmed all their entries after "
                                f"{DISCOVERY_TIMEOUT_SECONDS:g} s; see the controller's log")
        raise NotDiscovered(f"the controller does not know {len(missing)} hosts after "
                            f"{DISCOVERY_TIMEOUT_SECONDS:g} s ({', '.join(sorted(missing)[:4])}); see its log")
    if not is_converged and warn is not None:
        warn(f"warning: entries are missing in the {', the '.join(full)}, which are full")
