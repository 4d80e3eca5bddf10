"""Who may ask what over REST: operators everything, others what routes say with their `roles`."""

import math
import time
from collections.abc import Sequence

import eventlet

from speedwell.controller.rest.http import Request
from speedwell.controller.rest.problems import NotAuthenticated, NotAuthorised, TooManyRequests
from speedwell.controller.rest.roles import NOBODY_ELSE
from speedwell.controller.rest.routes import Route
from speedwell.fs.identity.bundle import Identity, Peer
from speedwell.fs.identity.roles import DATASERVER, OPERATOR
from speedwell.fs.rates import Rates, of_refused

COOKIE = "__Host-speedwell"


Sender = Peer | None
"""Who asks, by a certificate."""


def require_own_host(sender: Sender, names: Sequence[str]) -> None:
    """A dataserver speaks for the host that is called as its certificate alone. Raises NotAuthorised."""
    if sender is not None and sender.role == DATASERVER and sender.name not in names:
        raise NotAuthorised(f"host: the {sender} may not speak for {names[-1]}.")


class Access:
    """Who is refused again and again is answered late."""

    def __init__(self, identity: Identity, requests_per_second: float) -> None:
        """So many each identity may make, and twice as many at once."""
        self.identity = identity
        self._refused = of_refused()
        self._requests_per_second = requests_per_second
        self._rates = Rates(requests_per_second, 2 * requests_per_second)

    def require(self, request: Request, route: Route | None) -> None:
        """`route` is None where nothing is served. Raises NotAuthenticated, NotAuthorised, TooManyRequests."""
        allowed = route.roles if route is not None else NOBODY_ELSE
        if allowed is None:     # EVERYBODY
            return
        sender: Peer | None = None
        try:
            sender = self._sender(request)
            self._require_pace(sender)
            if route is not None and sender.role not in (OPERATOR, *allowed):
                raise NotAuthorised(f"The {sender} may not ask for {route.method} {route.path}: that is for "
                                    f"{' and '.join(sorted((OPERATOR, *allowed)))}.")
            request.is_still_known = self._knows_sender
        except (NotAuthenticated, NotAuthorised):
            eventlet.sleep(self._refused.take(str(sender or request.peer), time.monotonic()))
            raise

    def by_token(self, token: str) -> Peer:
        """Raises NotAuthenticated."""
        peer = self.identity.peer_by_token(token)
        if peer is None:
            raise NotAuthenticated("The token is not, or no longer, good here: `speedwell identity token` makes "
                                   "another one.")
        return peer

    def _require_pace(self, sender: Peer) -> None:
        who, now = str(sender), time.monotonic()
        if wait_seconds := self._rates.wait(who, now):
            raise TooManyRequests(f"The {sender} may ask {self._requests_per_second:g} times a second.",
                                  headers=[("Retry-After", str(math.ceil(wait_seconds)))])
        self._rates.take(who, now)

    def _knows_sender(self, request: Request) -> bool:
        try:
            self._sender(request)
        except NotAuthenticated:
            return False
        return True

    def _sender(self, request: Request) -> Peer:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            peer = self.by_token(token.strip())
        elif request.sender is not None:
            peer = request.sender
            if refusal := self.identity.refusal(peer):
                raise NotAuthenticated(f"{refusal[0].upper()}{refusal[1:]}.")
        elif cookie := _cookie(request):
            peer = self.by_token(cookie)
        else:
            raise NotAuthenticated("Show a certificate of this installation, or send Authorization: Bearer TOKEN, "
                                   "which `speedwell identity token` makes.")
        request.is_proven = True
        return peer


def _cookie(request: Request) -> str:
    """The page's token; empty if another site has the browser ask."""
    if request.headers.get("origin", own := f"https://{request.headers.get('host', '')}") != own:
        return ""
    for pair in request.headers.get("cookie", "").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == COOKIE:
            return value
    return ""
