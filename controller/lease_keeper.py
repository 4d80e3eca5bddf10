"""A controller's lease in etcd, kept by a process of its own: gRPC has threads, which Ryu's green ones do not bear.

    python -m speedwell.controller.lease_keeper SETTINGS      with a socket to the controller as standard input

The controller says on that socket when it was alive, and is told its `Standing`. A controller that ends closes the
socket, one that is stopped says nothing; either way the lease is given back and another controller leads.
"""

from __future__ import annotations

import json
import logging
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from speedwell.controller.leadership import Standing, now
from speedwell.controller.tenure import Tenure
from speedwell.fs import logs
from speedwell.fs.errors import SpeedwellError, StorageFailed
from speedwell.fs.etcd_client import EtcdClient
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.proto import etcd_pb2 as pb

log = logging.getLogger(__name__)

LEASE_SECONDS = 1
"""etcd makes 2 of it with its default timing; that of `speedwell init` is shorter."""
STEP_SECONDS = 0.1
ATTEMPT_SECONDS = 0.5
RETRY_SECONDS = 1.0


class LeaseKeeper:
    """Asks for the lead at `prefix` in etcd for the controller at `url`, while that is alive. `step` is to be
    called again and again. The key of the lead has the leader's URL; below it each controller has its own."""

    def __init__(self, etcd: EtcdClient, prefix: str, url: str) -> None:
        self.tenure = Tenure()
        self._etcd = etcd
        self._key = f"{prefix.rstrip('/')}-controller".encode()    # nameservers watch what is below the prefix
        self._url = url.encode()
        self._renew_at = 0.0
        self._standing = Standing()
        self._complaint = ""

    def step(self) -> Standing:
        """Renew the lease if that is due, see who leads, and lead if nobody does."""
        try:
            if self.tenure.lease and not self.tenure.is_fit(now()):
                self.resign()
            if self.tenure.is_alive(now()) and now() >= self._renew_at:
                self._renew()
            self._look()
            self._complaint = ""
        except StorageFailed as error:
            if self._complaint != str(error):
                log.warning("%s", error)
            self._complaint = str(error)
        return replace(self._standing, until=self.tenure.until)

    def resign(self) -> None:
        """Let another controller lead at once."""
        lease, self._renew_at = self.tenure.lease, 0.0
        self.tenure.leased(0, 0.0, 0.0)
        if lease:
            self._etcd.revoke_lease(lease)

    def _renew(self) -> None:
        asked_at, lease = now(), self.tenure.lease
        if lease:
            seconds = self._etcd.renew_lease(lease)
        else:
            lease, seconds = self._etcd.grant_lease(LEASE_SECONDS)
            self._etcd.transaction(pb.TxnRequest(success=[_put(self._key + b"/" + self._url, self._url, lease)]))
        self.tenure.leased(lease, asked_at, seconds)
        self._renew_at = asked_at + seconds / 8

    def _look(self) -> None:
        found = self._found()
        if self._key not in found and self.tenure.is_fit(now()):
            self._etcd.transaction(pb.TxnRequest(
                compare=[pb.Compare(target=pb.Compare.CREATE, key=self._key, create_revision=0)],
                success=[_put(self._key, self._url, self.tenure.lease)]))
            found = self._found()       # ours too if only the answer was lost
        key = found.pop(self._key, None)
        if key is None:
            self.tenure.holds(0, 0)
            self._standing = Standing("", self._standing.generation)
            return
        has_led = bool(self.tenure.generation)
        if self.tenure.holds(key.lease, key.create_revision) and not has_led:
            log.info("this controller leads, generation %d", key.create_revision)
        urls = sorted({_url(each) for each in found.values()} - {_url(key)})
        self._standing = Standing(_url(key), key.create_revision, standbys=tuple(urls))

    def _found(self) -> dict[bytes, pb.KeyValue]:
        """The key of the lead and those below it, by their names."""
        kvs = self._etcd.range(self._key, self._key + b"0").kvs     # "0" comes after "/"
        return {kv.key: kv for kv in kvs if kv.key == self._key or kv.key.startswith(self._key + b"/")}


def _put(key: bytes, value: bytes, lease: int) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))


def _url(kv: pb.KeyValue) -> str:
    return kv.value.decode("ascii", "replace")


def keep(controller: socket.socket, keeper: LeaseKeeper) -> None:
    """Until the controller ends."""
    while True:
        if select.select([controller], [], [], STEP_SECONDS)[0]:
            received = controller.recv(1 << 16)
            if not received:
                return
            # A beat in two pieces is followed by a whole one.
            for line in received.split(b"\n")[:-1]:
                with suppress(ValueError):
                    keeper.tenure.beat(min(float(line), now()))
        controller.sendall(keeper.step().encode())


def main(arguments: Sequence[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)       # it ends with the controller
    settings = json.loads(arguments[0])
    logs.configure(settings["log_level"])
    identity = Identity(Path(settings["identity"])) if settings["identity"] else None
    etcd = EtcdClient(settings["etcd"], ATTEMPT_SECONDS, identity, ATTEMPT_SECONDS)
    keeper = LeaseKeeper(etcd, settings["prefix"], settings["url"])
    with suppress(OSError), socket.socket(fileno=0) as controller:
        keep(controller, keeper)
    with suppress(StorageFailed):
        keeper.resign()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SpeedwellError as error:
        sys.exit(f"{error}")
