"""Several nameservers over an etcd, for tests that kill the one that leads."""

import sys
from collections.abc import Sequence
from pathlib import Path

from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.errors import NameserverUnavailable
from tests.etcd import EtcdCluster
from tests.local_cluster import Daemon
from tests.waiting import wait_until

NAMESERVER = str(Path(sys.executable).parent / "speedwell-nameserver")


class Installation:
    """An etcd and nameservers over it."""

    def __init__(self, directory: Path, etcd: EtcdCluster, number: int, *arguments: str,
                 program: Sequence[str] = (NAMESERVER,)) -> None:
        self.etcd = etcd
        self.nameservers = [
            Daemon(f"n{n}", [*program, "--directory", str(directory / f"n{n}"), "--etcd", ",".join(etcd.endpoints),
                             "--etcd-prefix", str(directory), *arguments], directory / f"n{n}.log")
            for n in range(number)]
        for nameserver in self.nameservers:
            nameserver.start()

    @property
    def address(self) -> str:
        return ",".join(nameserver.address for nameserver in self.nameservers)

    def leader(self) -> Daemon:
        """The nameserver that answers; waits until there is one."""
        found: list[Daemon] = []

        def somebody_answers() -> bool:
            found[:] = [nameserver for nameserver in self.nameservers if nameserver.process and _leads(nameserver)]
            return bool(found)

        wait_until(somebody_answers, 15, "no nameserver leads")
        assert len(found) == 1
        return found[0]

    def stop(self) -> None:
        for nameserver in self.nameservers:
            if nameserver.process is not None:
                nameserver.kill()


def _leads(nameserver: Daemon) -> bool:
    client = MetadataClient(nameserver.address, 0, call_timeout_seconds=0.3)
    try:
        client.lookup("/")
    except NameserverUnavailable:
        return False
    finally:
        client.close()
    return True
