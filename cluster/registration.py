"""Whether the dataservers of an installation have registered."""

from __future__ import annotations

from collections.abc import Collection

from cluster.errors import StartFailed
from topo.waiting import wait_for

REGISTRATION_TIMEOUT_SECONDS = 20.0
REBUILDING_TIMEOUT_SECONDS = 240.0


def wait_for_dataservers(nameserver: str, ids: Collection[str]) -> None:
    """Wait until the nameserver counts all dataservers as alive: only then can files be stored.

    Raises StartFailed, naming the missing ones, after REGISTRATION_TIMEOUT_SECONDS; or with what a nameserver that
    rebuilds its namespace waits for, after REBUILDING_TIMEOUT_SECONDS.
    """
    from fs.client.metadata import MetadataClient
    from fs.errors import NamespaceRebuilding, SpeedwellError

    client = MetadataClient(nameserver)
    missing = set(ids)
    refused: list[str] = []
    rebuilding: NamespaceRebuilding | None = None

    def rebuilt() -> bool:
        nonlocal rebuilding
        try:
            client.statistics()
        except NamespaceRebuilding as error:
            rebuilding = error
            return False
        except SpeedwellError:
            pass
        return True

    def registered() -> bool:
        nonlocal missing
        try:
            statistics = client.statistics()
        except SpeedwellError:
            return False
        refused[:] = statistics.warnings
        servers = [status.server for status in statistics.dataservers]
        missing = set(ids) - {server.dataserver_id for server in servers if server.alive}
        return not missing

    try:
        if not wait_for(rebuilt, REBUILDING_TIMEOUT_SECONDS):
            raise StartFailed(str(rebuilding))
        if not wait_for(registered, REGISTRATION_TIMEOUT_SECONDS):
            if refused:
                raise StartFailed("; ".join(refused))
            raise StartFailed(f"the nameserver at {nameserver} got no heartbeat of "
                              f"{', '.join(sorted(missing))} within {REGISTRATION_TIMEOUT_SECONDS:g} s")
    finally:
        client.close()
