"""A metadata server in a cluster: it announces itself to the controller, and takes and leaves blocks as told."""

from __future__ import annotations

import http.client
import json
import logging
import secrets
import threading
import time
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from speedwell.fs.controller import Controller
from speedwell.fs.errors import InvalidArgument, SpeedwellError, reason
from speedwell.fs.metadata_store.hot_keys import hottest
from speedwell.fs.metadata_store.ownership import Ownership, common
from speedwell.fs.metadata_store.peers import Peer
from speedwell.fs.metadata_store.routes import OwnerRoutes

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
PAUSE_SECONDS = 0.5
COUNTED_SECONDS = 1.0
"""At least, of the reads that are told."""


class Membership:
    """Announces the server from `start` to `stop`. Without a controller it goes on with what it owns; one that just
    started owns what it owned before once the controller agrees."""

    def __init__(self, controller: Controller, own: Peer, ownership: Ownership, routes: OwnerRoutes) -> None:
        """Raises StorageFailed."""
        self._connection = controller.connect(ANSWER_SECONDS)
        self._own = own
        self._ownership = ownership
        self._routes = routes
        self._id = secrets.token_hex(8)
        self._claims: tuple[list[IPv4Network], dict[IPv4Network, Peer]] | None = ownership.recall()
        self._is_settled = False
        self._ready: set[IPv4Network] = set()
        self._fetching: dict[IPv4Network, threading.Thread] = {}
        self._spreads_hot_keys = False
        """Whether the controller has asked for reads: one of before refuses them."""
        self._counted_at = time.monotonic()
        self._reads: dict[str, Any] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(2 * ANSWER_SECONDS)

    def _run(self) -> None:
        pause_seconds, problem = 0.0, ""
        while not self._stopped.wait(pause_seconds):
            try:
                self._routes.set(self._ownership.answered)
                pause_seconds = self._obey(self._announce())
                problem = ""
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, SpeedwellError) as error:
                if (said := reason(error)) != problem:
                    log.warning("the controller's orders cannot be followed, which is tried again: %s", said)
                problem, pause_seconds = said, PAUSE_SECONDS

    def _announce(self) -> dict[str, Any]:
        owned, fetching = self._claims or (self._ownership.owned, self._ownership.fetching_from)
        body = {"host": self._own.host, "port": self._own.port, "id": self._id, "owned": list(map(str, owned)),
                "ready": list(map(str, sorted(self._ready))),
                "fetching": [{"block": str(block), "host": former.host} for block, former in fetching.items()],
                "members": [] if self._is_settled else sorted(self._ownership.members), **self._told_of_reads()}
        try:
            self._connection.request("POST", "/v1/metadata/servers", json.dumps(body),
                                     {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            orders = json.loads(answer.read())
        except BaseException:
            self._connection.close()
            raise
        if answer.status != 200:
            raise InvalidArgument(f"{orders['detail']}")
        return dict(orders)

    def _told_of_reads(self) -> dict[str, Any]:
        if not self._spreads_hot_keys:
            return {}
        if (seconds := time.monotonic() - self._counted_at) >= COUNTED_SECONDS:
            total, reads = self._ownership.reads.take()
            self._counted_at += seconds
            self._reads = {"reads": total / seconds, "hottest": {
                str(IPv4Address(address)): rate for address, rate in hottest(reads, total, seconds).items()}}
        return self._reads | {"answers_for": list(map(str, self._ownership.replicated))}

    def _obey(self, orders: dict[str, Any]) -> float:
        """Returns in how many seconds to announce again."""
        if orders["may_own"] is not None:
            may_own = list(map(IPv4Network, orders["may_own"]))
            if self._claims is not None:
                owned, fetching = self._claims
                self._ownership.set_owned(common(owned, may_own), fetching)
                self._claims = None
            self._ownership.restrict(may_own)
            self._ownership.set_members(orders["members"])
        self._is_settled = orders["may_own"] is not None
        incoming = {IPv4Network(each["block"]): Peer(each["host"], each["port"]) if each["host"] else None
                    for each in orders["incoming"]}
        leaving = {IPv4Network(each["block"]): Peer(each["host"], self._own.port) for each in orders["leaving"]}
        self._ownership.set_moves(incoming, leaving)
        self._spreads_hot_keys = "replicas" in orders
        self._ownership.set_hot({IPv4Address(each["address"]): Peer(each["host"], self._own.port)
                                 for each in orders.get("replicas", ())},
                                map(IPv4Address, orders.get("spread", ())))
        self._routes.set(self._ownership.answered)
        self._ready = set(incoming)
        waiting = set(self._ownership.incoming)
        silent: set[Peer | None] = set()
        for block in [IPv4Network(each["block"]) for each in orders["incoming"] if each["take"]]:
            # One that does not answer has perhaps given the block up: it is asked again before it is for others.
            if block in waiting and incoming[block] not in silent and not self._take(block):
                silent.add(incoming[block])
        for block in self._ownership.fetching:
            thread = self._fetching.get(block)
            if thread is None or not thread.is_alive():
                self._fetching[block] = threading.Thread(target=self._fetch, args=(block,), daemon=True)
                self._fetching[block].start()
        return float(orders["again_seconds"])

    def _take(self, block: IPv4Network) -> bool:
        try:
            self._ownership.take(block)
        except SpeedwellError as error:
            log.debug("%s is taken later: %s", block, error)
            return False
        return True

    def _fetch(self, block: IPv4Network) -> None:
        try:
            self._ownership.fetch(block)
        except SpeedwellError as error:
            log.warning("the rest of %s is fetched later: %s", block, error)
