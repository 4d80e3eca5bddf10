"""Changes whose nameserver is killed after it carried them out and before it answers: done once, and no error."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.wire.calls import CallFailed, Calls
from tests.etcd import EtcdCluster, requires_etcd
from tests.local_cluster import LocalCluster
from tests.several_nameservers import Installation
from tests.waiting import wait_until

PATIENCE_SECONDS = 60.0   # a quiet machine takes two to four
ATTRIBUTE = b"user.a"

CHANGES: dict[str, Callable[[MetadataClient, str], object]] = {
    "mkdir": lambda client, place: client.mkdir(f"{place}/new"),
    "symlink": lambda client, place: client.posix.make_symbolic_link(f"{place}/new", b"one"),
    "mknod": lambda client, place: client.posix.make_special(f"{place}/new", pb.FIFO, 0o600),
    "link": lambda client, place: client.posix.link(f"{place}/one", f"{place}/new"),
    "remove": lambda client, place: client.remove(f"{place}/one"),
    "remove open": lambda client, place: client.remove(f"{place}/one", session=9),
    "rmdir": lambda client, place: client.rmdir(f"{place}/directory"),
    "rename": lambda client, place: client.rename(f"{place}/one", f"{place}/new", no_replace=True),
    "replace": lambda client, place: client.rename(f"{place}/one", f"{place}/other"),
    "exchange": lambda client, place: client.rename(f"{place}/one", f"{place}/directory", exchange=True),
    "setxattr": lambda client, place: client.posix.set_extended_attribute(f"{place}/other", ATTRIBUTE, b"1",
                                                                          create=True),
    "removexattr": lambda client, place: client.posix.remove_extended_attribute(f"{place}/one", ATTRIBUTE),
    "chmod": lambda client, place: client.set_attributes(f"{place}/one", mode=0o600),
}
CREATE = {"create": lambda client, place: client.create(f"{place}/new", exclusive=True)}


class SilentAnswers:
    """The answers of the nameserver to the changes of a client: they arrive, and are kept from the client as if the
    connection broke, once all have come and `lose` is called."""

    def __init__(self, client: MetadataClient, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[Any] = []
        self._lost = threading.Event()
        call = Calls._call

        def silent(calls: Calls, method: str, request: Any, timeout: float) -> Any:
            answer = call(calls, method, request, timeout)
            is_change = method not in ("Lookup", "List", "Statistics")
            if calls not in client.nameservers._calls or not is_change or self._lost.is_set():
                return answer
            self.answers.append(answer)
            assert self._lost.wait(PATIENCE_SECONDS)
            raise CallFailed

        monkeypatch.setattr(Calls, "_call", silent)

    def lose(self) -> None:
        self._lost.set()


def prepare(client: MetadataClient, changes: dict[str, Any]) -> None:
    for name in changes:
        place = f"/{name}"
        client.mkdir(place)
        client.mkdir(f"{place}/directory")
        for file in ("one", "other"):
            client.posix.make_special(f"{place}/{file}", pb.FIFO, 0o644)
        client.posix.set_extended_attribute(f"{place}/one", ATTRIBUTE, b"1")


def tree(client: MetadataClient, changes: dict[str, Any]) -> list[tuple[str, bytes, pb.Attributes]]:
    """What is there, but for the tokens, of which each answer has new ones."""
    entries = [(place, entry) for place in changes for entry in client.list(f"/{place}")]
    for _, entry in entries:
        entry.attributes.ClearField("token")
    return [(place, entry.name, entry.attributes) for place, entry in entries]


def interrupt(address: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
              kill: Callable[[], None]) -> None:
    """Carries out `changes` at the same time, and calls `kill` when all were and no answer has arrived. Checks that
    all of them come back with the same answers after that, and nothing else has happened."""
    results: list[object] = []
    with (MetadataClient(address, 0, call_timeout_seconds=PATIENCE_SECONDS) as client,
          MetadataClient(address, 0, call_timeout_seconds=PATIENCE_SECONDS) as witness):
        prepare(client, changes)
        silent = SilentAnswers(client, monkeypatch)

        def run(name: str) -> None:
            try:
                results.append(changes[name](client, f"/{name}"))
            except BaseException as error:
                results.append(f"{name}: {error!r}")

        threads = [threading.Thread(target=run, args=(name,)) for name in changes]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(silent.answers) == len(changes), 30, "not all changes are answered")
            done = tree(witness, changes)
            kill()
        finally:
            silent.lose()
            for thread in threads:
                thread.join(PATIENCE_SECONDS + 10)
        assert len(results) == len(changes)
        assert [result for result in results if isinstance(result, str)] == []
        assert tree(witness, changes) == done


def test_a_nameserver_that_is_restarted_knows_what_it_did_not_answer(tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(tmp_path, dataservers=1) as cluster:
        def kill() -> None:
            cluster.nameserver.kill()
            cluster.nameserver.start()

        interrupt(cluster.nameserver.address, CHANGES | CREATE, monkeypatch, kill)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path) as cluster:
        yield cluster


@requires_etcd
def test_a_nameserver_that_takes_over_knows_what_the_dead_one_did_not_answer(
        etcd: EtcdCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installation = Installation(tmp_path, etcd, 2)
    try:
        interrupt(installation.address, CHANGES, monkeypatch, lambda: installation.leader().kill())
    finally:
        installation.stop()
