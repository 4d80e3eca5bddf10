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

    def __init__(self, number: int, arguments: list[str], directory: Path, identity: Path | None = None) -> None:
        """`arguments` are those of one nameserver, without its directory. `identity` is whose they answer."""
        self._identity = identity
        self._directory = directory
        self.etcd = EtcdCluster(directory)
        self._is_started = False
        self._arguments_of_all = [*arguments, "--shared", "--etcd", ",".join(self.etcd.endpoints), "--etcd-prefix",
                                  str(directory)]
        self.members = [self.another(f"nameserver-{each}") for each in range(number)]
        super().__init__("nameserver", arguments, directory / "nameserver.log")

    def another(self, name: str) -> Daemon:
        """One more that is to share the namespace, once it is started."""
        return Daemon(name, [*self._arguments_of_all, "--directory", str(self.directory_of(name))],
                      self._directory / "nameserver.log")

    def directory_of(self, name: str) -> Path:
        """Where one of them has its mirror."""
        return self._directory / "nameserver" / name

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
            self.etcd.start_all()
            self._is_started = True
        for member in self.members:
            member.launch(*(word for word in more if word != "--new"))

    def wait_ready(self) -> None:
        for member in self.members:
            member.wait_ready()
        wait_until(self.all_own, 30, "not all nameservers own a part")

    def all_own(self) -> bool:
        """Whether they and nobody else own the namespace."""
        try:
            return set(self.owners()) == {member.address for member in self.members}
        except SpeedwellError:
            return False

    def owners(self, told_by: Daemon | None = None, revision: int = 0) -> list[str]:
        """The address of the owner of each block, as one of them says, the first by default, once it has seen what
        etcd has up to a revision. Raises SpeedwellError."""
        nameservers = Nameservers((told_by or self.members[0]).address, 1.0, identity=self._identity)
        try:
            reply = nameservers._calls[0].call("Owners", pb.OwnersRequest(revision=revision), 1.0)
        finally:
            nameservers.close()
        return [each.address for each in reply.owners for _ in range(each.first, each.last + 1)]

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
            self.etcd.__exit__()
