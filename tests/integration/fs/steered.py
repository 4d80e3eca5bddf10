"""Placements on the dataservers of a local cluster, and the connections that follow from them."""

from pathlib import Path
from typing import Any

from speedwell.fs.client import Client
from speedwell.fs.wire.channel import connect
from tests.local_cluster import LocalCluster
from tests.scripted_controller import Answer


def place_on(cluster: LocalCluster, *names: str, weights: tuple[int, ...] = ()) -> Answer:
    """Answers that give each named dataserver a part, equal or by `weights`; those no longer offered are left out."""
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        offered = {replica["host"] for replica in body["replicas"]}
        chosen = [daemon for daemon in map(cluster.dataserver, names) if daemon.host in offered]
        chosen = chosen[:len(body["client_ports"])]
        size = body["size_bytes"]
        shares = weights[:len(chosen)] or (1,) * len(chosen)
        cuts = [size * sum(shares[:index]) // sum(shares) for index in range(len(chosen) + 1)]
        return 201, {"id": f"r{body['client_ports'][0]}", "parts": [
            {"replica": {"host": daemon.host, "port": daemon.port}, "client_port": port,
             "offset_bytes": start, "size_bytes": stop - start, "path": [], "path_names": ["a", "b"]}
            for daemon, port, start, stop in zip(chosen, body["client_ports"], cuts, cuts[1:], strict=False)]}
    return answer


def acquainted(client: Client) -> Client:
    """The client once it has asked every dataserver who it is: from then on a part begins with its first request."""
    for status in client.statistics().dataservers:
        server = status.server
        client._context.identified.require(connect(server.host, server.port), server).close()
    return client


def established(port: int) -> set[int]:
    """The remote ports of this machine's connections from a local port."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {int(row[2].rpartition(":")[2], 16) for row in rows
            if row[3] == "01" and int(row[1].rpartition(":")[2], 16) == port}
