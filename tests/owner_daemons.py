"""Nameservers that share a namespace over an etcd of their own, in place of a test cluster's one nameserver."""

import subprocess
from pathlib import Path
from typing import Any

from speedwell.fs.client.names.nameservers import Nameservers
from speedwell.fs.errors import SpeedwellError
from speedwell.fs.proto import speedwell_pb2 as pb
from tests.etcd import EtcdCluster
from tests.local_cluster import Daemon
from tests.waiting import wait_until


class OwnerDaemons(Daemon):
    """As one `Daemon`: what is done to it is done to all."""

    def __init__(self, number: int, arguments: list[str], directory: Path) -> None:
        """`arguments` are those of one nameserver, without its directory."""
        self._directory = directory
        self._etcd = EtcdCluster(directory)
        self._is_started = False
        self._arguments_of_all = [*arguments, "--shared", "--etcd", ",".join(self._etcd.endpoints), "--etcd-prefix",
                                  str(directory)]
        self.members = [self.another(f"nameserver-{each}") for each in range(number)]
        super().__init__("nameserver", arguments, directory / "nameserver.log")

    def another(self, name: str) -> Daemon:
        """One more that is to share the namespace, once it is started."""
        return Daemon(name, [*self._arguments_of_all, "--directory", str(self._directory / name)],
                      self._directory / "nameserver.log")

    @property
    def address(self) -> str:
        return ",".join(member.address for member in self.members)

    @property
    def process(self) -> subprocess.Popen[bytes] | None:     # type: ignore[override]
        return self.members[0].process

    @process.setter
    def process(self, process: Any) -> None:
        pass

    def launch(self, *more: str) -> None:
        if not self._is_started:
            self._etcd.start_all()
            self._is_started = True
        for member in self.members:
            member.launch(*(word for word in more if word != "--new"))

    def wait_ready(self) -> None:
        for member in self.members:
            member.wait_ready()
        wait_until(self.all_own, 30, "not all nameservers own a part")

    def all_own(self) -> bool:
        """Whether they and nobody else own the namespace."""
        nameservers = Nameservers(self.address, 1.0)
        try:
            reply = nameservers._calls[0].call("Owners", pb.OwnersRequest(), 1.0)
        except SpeedwellError:
            return False
        finally:
            nameservers.close()
        return {each.address for each in reply.owners} == {member.address for member in self.members}

    def pause(self) -> None:
        for member in self.members:
            member.pause()

    def resume(self) -> None:
        for member in self.members:
            member.resume()

    def stop(self, *arguments: Any, **options: Any) -> int | None:
        first, *_ = [member.stop(*arguments, **options) for member in self.members]
        return first

    def end(self) -> None:
        """Also what keeps the namespace."""
        if self._is_started:
            self._etcd.__exit__()
