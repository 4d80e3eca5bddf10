"""Has the fabric bring requests for what this nameserver owns: local routes, a listener, and word to the controller.

The host takes the addresses of a block as soon as the block is this owner's, and keeps them for a while once it is
not: a SYN that nobody answers costs its sender a second, while who answers can say that it is another's.
"""

import http.client
import json
import logging
import threading
import time
from ipaddress import IPv4Network
from pathlib import Path

from speedwell.fs import slots
from speedwell.fs.controller import Controller
from speedwell.fs.errors import SpeedwellError, reason
from speedwell.fs.metadata_store.routes import OwnerRoutes
from speedwell.fs.store.shared import SharedStore

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.02
EVERY_SECONDS = 1.0
LEFT_SECONDS = 10.0
ANSWER_SECONDS = 2.0


class Steered(threading.Thread):
    """Between `start` and `stop`. A controller that is away is told later; the switches go on as they are."""

    def __init__(self, store: SharedStore, controller_url: str, host: str, identity: Path | None = None) -> None:
        """`host` is this host's address on the fabric. Raises InvalidArgument, IdentityError, NotPermitted,
        StorageFailed."""
        super().__init__(name="steered", daemon=True)
        self._store = store
        self._connection = Controller(controller_url, identity).connect(ANSWER_SECONDS)
        self._host = host
        self._routes = OwnerRoutes(slots.NETWORK)
        self._left: dict[int, float] = {}
        """Blocks that were this owner's, and until when it answers from their addresses."""
        self._stopped = threading.Event()
        self._problem = ""

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        self._connection.close()
        self._routes.set(set())     # else this host's own clients would go on to come here

    def run(self) -> None:
        said: tuple[int, set[int], set[int]] | None = None
        owned: set[int] = set()
        due = 0.0
        while not self._stopped.wait(LOOK_SECONDS):
            now, before = time.monotonic(), owned
            epoch, owned = self._store.owners.epoch, self._store.owners.own_blocks if self._store.leads else set()
            self._left |= dict.fromkeys(before - owned, now + LEFT_SECONDS)
            self._left = {block: until for block, until in self._left.items() if until > now and block not in owned}
            news = epoch, owned, set(self._left)
            if news != said or now >= due:
                if self._tell(*news):
                    said, due = news, now + EVERY_SECONDS
                else:
                    due = now + EVERY_SECONDS / 5

    def _tell(self, epoch: int, owned: set[int], left: set[int]) -> bool:
        body = json.dumps({"host": self._host, "epoch": epoch, "owned": sorted(owned), "left": sorted(left)})
        try:
            self._routes.set(_networks(owned | left))
            self._connection.request("PUT", "/v1/metadata/owners", body, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            content = answer.read()
            problem = "" if answer.status == 204 else content[:300].decode(errors="replace")
        except (OSError, http.client.HTTPException, SpeedwellError) as error:
            self._connection.close()
            problem = reason(error)
        if problem and problem != self._problem:
            log.warning("cannot tell the switches which blocks this nameserver owns, trying again: %s", problem)
        self._problem = problem
        return not problem


def _networks(blocks: set[int]) -> set[IPv4Network]:
    return {slots.addresses_of(block) for block in blocks}
