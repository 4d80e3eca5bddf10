"""Whether the dataservers of an installation have registered."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from speedwell.cluster.errors import StartFailed
from speedwell.topo.waiting import wait_for

REGISTRATION_TIMEOUT_SECONDS = 20.0
REBUILDING_TIMEOUT_SECONDS = 240.0


def wait_for_dataservers(nameserver: str, ids: Collection[str], identity: Path | None = None) -> None:
    """Wait until the nameserver counts all dataservers as alive: only then can files be stored.

    Raises StartFailed, naming the missing ones, after REGISTRATION_TIMEOUT_SECONDS; or with what a nameserver that
    rebuilds its namespace waits for, after REBUILDING_TIMEOUT_SECONDS.
    """
    from speedwell.fs.client.names.metadata import MetadataClient
    from speedwell.fs.errors import NamespaceRebuilding, SpeedwellError

    client = MetadataClient(nameserver, identity=identity)
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


def own_root_directory(nameserver: str, identity: Path | None = None) -> None:
    """Give an ordinary user's installation a root directory that is theirs: a new one belongs to root."""
    if os.geteuid() == 0:
        return
    from speedwell.fs.client.names.metadata import MetadataClient

    client = MetadataClient(nameserver, identity=identity)
    try:
        if client.lookup("/").uid == 0:
            client.set_attributes("/", uid=os.geteuid(), gid=os.getegid())
    finally:
        client.close()
