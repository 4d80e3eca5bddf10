"""A nameserver that is one of several owners of a namespace: answers for its blocks, refuses the others by name.

Dataservers report to the owner of block 0 alone. The others ask it each second what it knows of them.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

from speedwell.fs.errors import SpeedwellError
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.nameserver.service.dispatch import Requests
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store.shared import SharedStore
from speedwell.fs.wire.calls import CallFailed, Calls

log = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
AT_FIRST_SECONDS = 0.05
"""Until the owner of block 0 was heard, without which nothing is answered."""
CALL_SECONDS = 1.0
OWNERS_WAIT_SECONDS = 0.9


class Sharing:
    """Owns blocks, in threads of its own, between `start` and `stop`."""

    def __init__(self, store: SharedStore, requests: Requests, make_service: Callable[[], NameserverService],
                 identity: Identity | None = None) -> None:
        self._store = store
        self._requests = requests
        self._make_service = make_service
        self._identity = identity
        self._service: NameserverService | None = None
        self._told: pb.StatisticsReply | None = None
        self._calls: dict[str, Calls] = {}
        self._stopped = threading.Event()
        store.tell = self._tell
        requests.always["Owners"] = (pb.OwnersRequest, self._owners)
        self._threads = [threading.Thread(target=store.serve, args=(self._changed,), name="owner", daemon=True),
                         threading.Thread(target=self._ask_forever, name="first owner", daemon=True)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Afterwards every request is refused, and other nameservers own what this one did."""
        self._store.leave()
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        for calls in list(self._calls.values()):
            calls.close()

    def _changed(self) -> None:
        """With the guard."""
        self._service = None
        if self._store.owners.own_blocks and self._store.leads:
            self._service = self._make_service()
            if self._store.owners.is_first:
                log.info("owns %d blocks, block 0 among them", len(self._store.owners.own_blocks))
                self._requests.lead(self._service)
                return
            if self._told is not None:
                self._service.hear(self._told)
                self._requests.lead(self._service)
                return
        self._requests.stand_by()

    def _ask_forever(self) -> None:
        while not self._stopped.wait(EVERY_SECONDS if self._told is not None or self._store.owners.is_first
                                     else AT_FIRST_SECONDS):
            try:
                for address in self._calls.keys() - self._store.owners.addresses:
                    self._calls.pop(address).close()
                if not self._store.owners.is_first and self._store.owners.first.address:
                    self._ask_first(self._store.owners.first.address)
                    self._forget_outcomes()
            except Exception:
                log.exception("asking what dataservers report failed; it is asked again")

    def _ask_first(self, address: str) -> None:
        reply = self._ask(address, "Statistics", pb.StatisticsRequest())
        if reply is None:
            return
        with self._store.guard:
            is_news, self._told = self._told is None, reply
            if self._service is not None and not self._store.owners.is_first:
                self._service.hear(reply)
                if is_news:
                    self._requests.lead(self._service)

    def _forget_outcomes(self) -> None:
        """The owner of block 0 does so with each heartbeat."""
        service = self._service
        if service is not None:
            self._store.decide(None, lambda _: service.outcomes.forget(), None)

    def _owners(self, request: pb.OwnersRequest) -> pb.OwnersReply:
        """Without the guard, and before there is anything to answer for: who asks may hold others up. Raises
        NotLeader if what was written does not come here in time, InvalidArgument if nothing was."""
        self._store.wait_for_written(request.revision, OWNERS_WAIT_SECONDS)
        owners = self._store.owners
        return pb.OwnersReply(epoch=owners.epoch, owners=[
            pb.OwnedBlocks(first=first, last=last, address=address) for first, last, address in owners.runs()])

    def _tell(self, address: str, revision: int, seconds: float) -> bool:
        return self._ask(address, "Owners", pb.OwnersRequest(revision=revision), seconds) is not None

    def _ask(self, address: str, method: str, request: Any, seconds: float = CALL_SECONDS) -> Any:
        """The reply; None if there is none."""
        calls = self._calls.get(address) or self._calls.setdefault(
            address, Calls(address, int(CALL_SECONDS), self._identity))
        try:
            return calls.call(method, request, min(seconds, CALL_SECONDS))
        except (SpeedwellError, CallFailed) as error:
            log.debug("the nameserver at %s does not answer: %s", address, error)
            return None
