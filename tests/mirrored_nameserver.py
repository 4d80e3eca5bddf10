"""A nameserver and dataservers' copies of its namespace in one process: the real parts without sockets and clocks.

    with MirroredNameserver(tmp_path, ["d0", "d1"]) as installation:
        installation.settle()
        installation.service ...
"""

import os
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from speedwell.fs.dataserver.upkeep.mirror import Mirror
from speedwell.fs.errors import DatabaseDamaged, NamespaceRebuilding, SpeedwellError
from speedwell.fs.nameserver.backup import rebuilding
from speedwell.fs.nameserver.backup.copy_holders import Holders
from speedwell.fs.nameserver.backup.namespace_directory import NameserverDirectory
from speedwell.fs.nameserver.backup.namespace_keeper import Keeper
from speedwell.fs.nameserver.service.dispatch import Requests
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.nameserver.service.settings import Settings
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import JournaledStore
from tests.waiting import wait_until

SETTLE_SECONDS = 0.02


class Holder:
    """A dataserver as far as it has to do with copies of the namespace."""

    def __init__(self, name: str, directory: Path, number: int) -> None:
        self.name = name
        self.directory = directory
        self.server = pb.Replica(dataserver_id=name, host="127.0.0.1", port=7000 + number, rack=f"r{number}")
        self.lengths: list[pb.FileLength] = []
        self.reports: list[pb.FileReport] = []
        self.refused = ""
        directory.mkdir(exist_ok=True)
        self.mirror = Mirror(directory / "mirror")

    def restart(self) -> None:
        self.mirror.close()
        self.mirror = Mirror(self.directory / "mirror")

    def beat(self, requests: Requests, parts: int | None = None) -> None:
        """One heartbeat, and what its answer asks for; at most `parts` parts of the copy are sent."""
        request = pb.HeartbeatRequest(server=self.server, capacity_bytes=1 << 40, available_bytes=1 << 39,
                                      holders=self.mirror.holders.message(), mirror=self.mirror.position,
                                      mirror_damage=self.mirror.damage, lengths=self.lengths,
                                      reports=self.reports)
        self.refused = ""
        try:
            reply = pb.HeartbeatReply.FromString(requests.answer("Heartbeat", request.SerializeToString()))
            if reply.rebuilding:
                self._send(requests, reply.upload, parts)
                return
            self.mirror.learn(Holders.of(reply.holders))
            more = reply.keep_mirror
            while more:
                more = self._pull(requests)
        except DatabaseDamaged as error:
            self.mirror.damaged(str(error))
        except SpeedwellError as error:
            self.refused = str(error)

    def _pull(self, requests: Requests) -> bool:
        question = self.mirror.request(self.name)
        reply = pb.MirrorReply.FromString(requests.answer("Mirror", question.SerializeToString()))
        self.mirror.take(reply)
        return reply.more or (bool(reply.cursor) and not reply.copied) or \
            (self.mirror.position is None or self.mirror.position.sequence < reply.position.sequence)

    def _send(self, requests: Requests, upload: int, parts: int | None) -> None:
        if not upload:
            return
        for number, (changes, last) in enumerate(self.mirror.parts()):
            if number == parts:
                return
            part = pb.UploadMirrorRequest(dataserver_id=self.name, upload=upload, part=number, changes=changes,
                                          last=last)
            requests.answer("UploadMirror", part.SerializeToString())


class MirroredNameserver:
    """`holders` by name; the nameserver's directory is DIRECTORY/nameserver."""

    def __init__(self, directory: Path, names: list[str], *, mirrors: int = 3, sync: bool = False) -> None:
        self.directory = directory
        self.holders = {name: Holder(name, directory / name, number) for number, name in enumerate(names)}
        self.requests = Requests()
        self._settings = Settings(mirrors=mirrors, recovery_grace_seconds=0.0, lease_seconds=3600.0)
        self._sync = sync
        self._keeper: Keeper | None = None
        self._service: NameserverService | None = None
        self._settle_seconds = rebuilding.SETTLE_SECONDS

    def __enter__(self) -> "MirroredNameserver":
        rebuilding.SETTLE_SECONDS = SETTLE_SECONDS
        self.start(new=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.stop()
        rebuilding.SETTLE_SECONDS = self._settle_seconds
        for holder in self.holders.values():
            holder.mirror.close()

    @property
    def service(self) -> NameserverService:
        assert self._service is not None
        return self._service

    @property
    def place(self) -> Path:
        return self.directory / "nameserver"

    def start(self, *, new: bool = False, force: bool = False) -> None:
        self.requests = Requests()
        self._keeper = Keeper(NameserverDirectory(self.place, sync=self._sync), self.requests, self._make_service,
                              new=new, force=force, mirrors=self._settings.mirrors > 0)
        self._keeper.start()

    def _make_service(self, store: JournaledStore, doubt: object) -> NameserverService:
        self._service = NameserverService(store, self._settings, generator=random.Random(1),
                                          doubt=doubt)  # type: ignore[arg-type]
        return self._service

    def stop(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.stop()

    def crash(self) -> None:
        """As kill -9 leaves the directory."""
        saved = self.directory / "saved"

        def copied() -> bool:
            """Whether nothing changed meanwhile: a kill leaves one moment's files."""
            shutil.rmtree(saved, ignore_errors=True)
            before = _files(self.place)
            with suppress(shutil.Error):
                shutil.copytree(self.place, saved)
                return _files(self.place) == before
            return False

        wait_until(copied, 30, "the directory does not come to rest")
        self.stop()
        shutil.rmtree(self.place)
        saved.rename(self.place)

    def lose(self) -> None:
        """The nameserver's directory is gone."""
        self.stop()
        shutil.rmtree(self.place)

    @property
    def serves(self) -> bool:
        try:
            self.requests.answer("Statistics", b"")
        except NamespaceRebuilding:
            return False
        return True

    def refusal(self) -> str:
        """Why it does not serve."""
        try:
            self.requests.answer("Statistics", b"")
        except NamespaceRebuilding as error:
            return str(error)
        return ""

    def beat(self) -> None:
        """A heartbeat of every dataserver."""
        for holder in self.holders.values():
            holder.beat(self.requests)

    def settle(self) -> None:
        """Until every copy is complete and level."""
        mirrors: list[pb.MirrorStatus] = []

        def level() -> bool:
            self.beat()
            mirrors[:] = self.service.statistics(pb.StatisticsRequest()).mirrors
            return len(mirrors) == min(self._settings.mirrors, len(self.holders)) and \
                all(mirror.holder and not mirror.behind for mirror in mirrors)

        try:
            wait_until(level, 10, "the copies of the namespace do not become level", interval_seconds=0.0)
        except AssertionError as error:
            raise AssertionError(f"{error}: {mirrors}, {[holder.refused for holder in self.holders.values()]}, "
                                 f"{self.refusal()}") from None

    def rebuild(self, **options: bool) -> None:
        """Start, and let the dataservers beat until it serves."""
        self.start(**options)
        self.wait_rebuilt()

    def wait_rebuilt(self) -> None:
        def served() -> bool:
            self.beat()
            return self.serves

        wait_until(served, 10, "the namespace is not rebuilt", interval_seconds=0.005)

    def stays_waiting(self, seconds: float = 0.3) -> str:
        """Why it does not serve, after the dataservers had time to report."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.beat()
            assert not self.serves
        return self.refusal()

    def contents(self) -> dict[bytes, bytes]:
        """Everything the namespace consists of, but for the number of the next inode."""
        found = dict(self.service._store.iterate(b""))
        found[b"!"] = found[b"!"][:2] + found[b"!"][10:]
        return found

    def checked_contents(self) -> dict[bytes, bytes]:
        """As `contents`, once what is damaged is repaired."""
        try:
            return self.contents()
        except DatabaseDamaged as error:
            assert self._keeper is not None
            self._keeper.damaged(str(error))
        wait_until(lambda: not self.serves, 15, "it goes on with a damaged database")
        self.wait_rebuilt()
        return self.contents()


def _files(directory: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each; of one that is gone by now, nothing."""
    found = {}
    for parent, _, names in os.walk(directory):
        for path in (Path(parent, name) for name in names):
            with suppress(FileNotFoundError):
                status = path.stat()
                found[str(path)] = status.st_size, status.st_mtime_ns
    return found
