"""Where the SDN controller answers over HTTP, and connections to it: over TLS at https://, with our certificate."""

import contextlib
import http.client
import json
import os
import ssl
import threading
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

from speedwell.fs import tracing
from speedwell.fs.addresses import parse_url
from speedwell.fs.errors import IdentityError, InvalidArgument
from speedwell.fs.identity.bundle import Identity, explain, peer_of
from speedwell.fs.identity.known import identity_for
from speedwell.fs.identity.places import MOST_CONTROLLERS, VARIABLE, controllers_for
from speedwell.fs.identity.roles import CONTROLLER

LEADER_HEADER = "Speedwell-Leader"
"""Of an answer of a controller that stands by, with status 503."""
STANDBY_HEADER = "Speedwell-Standby"
"""Of an answer of the one that leads: the URLs of those that would take over."""
SILENT_SECONDS = 3.0
LOOK_SECONDS = 2.0
"""How long who knows no controller waits before it looks again whether there is one."""

OF_INSTALLATION = "installation"
"""In place of a URL: those that the authority of its certificates has told this machine of, or will."""


class Controller:
    """One at `url`, or several of which one leads. Thread-safe; its connections are for one thread each."""

    def __init__(self, url: str, identity: Path | str | None = None) -> None:
        """`url` has commas between several, or is OF_INSTALLATION. `identity` is the directory of ours, by default
        that of SPEEDWELL_IDENTITY or what `up` made on this machine; those that the installation has beside count,
        too. Raises InvalidArgument for what is not http[s]://HOST[:PORT], and for https:// or OF_INSTALLATION without
        an identity; IdentityError."""
        if url == OF_INSTALLATION and not (identity or os.environ.get(VARIABLE)):
            raise InvalidArgument(f"controller: {url}: a machine that has joined has an identity: name yours with "
                                  "--identity or SPEEDWELL_IDENTITY")
        self._identity = identity
        self._doors: list[_Door] = [_NOBODY] if url == OF_INSTALLATION else [
            _Door(each.rstrip("/"), identity) for each in url.split(",")]
        self._asked = 0
        self._adds = threading.Lock()
        self._looked_at = 0.0
        self._look()

    @property
    def url(self) -> str:
        """Of all that are known, with commas between them."""
        return ",".join(door.url for door in self._doors)

    @property
    def is_known(self) -> bool:
        """Whether the installation has one."""
        if self._doors == [_NOBODY] and time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._look()
        return self._doors != [_NOBODY]

    def connect(self, timeout_seconds: float) -> http.client.HTTPConnection:
        """A connection that is made with the first request, to who led last. That raises OSError,
        http.client.HTTPException. Who refuses a connection or stands by is not asked again while another may lead:
        a request goes to that one at once. One that is silent fails, and the next request goes to another."""
        return _ToLeader(self, timeout_seconds)

    @property
    def door(self) -> "_Door":
        """Where the one is that led last."""
        return self._doors[self._asked]

    def left(self, door: "_Door", *, is_silent: bool = False, is_gone: bool = False) -> None:
        """That one does not lead, or does not answer, or `is_gone`. Who was silent a moment ago is not asked in place
        of one that stands by: if it is gone, who stands by will lead before that one answers."""
        now = time.monotonic()
        if is_silent:
            door.silent_until = now + SILENT_SECONDS
        self._look()
        if door is self.door:
            others = [(self._asked + step) % len(self._doors) for step in range(1, len(self._doors))]
            self._asked = next((each for each in others if self._doors[each].silent_until <= now),
                               others[0] if (is_silent or is_gone) and others else self._asked)

    def told(self, door: "_Door", url: str) -> None:
        """One that stands by named who leads, or that one who stands by. It may be one more: its certificate has to
        prove it."""
        if url.partition(":")[0] == door.url.partition(":")[0]:
            self._add(url)

    def _add(self, url: str) -> None:
        with self._adds:
            known = [each for each in self._doors if each is not _NOBODY]
            if len(known) < MOST_CONTROLLERS and url not in [each.url for each in known]:
                with contextlib.suppress(InvalidArgument, IdentityError):
                    self._doors = [*known, _Door(url, self._identity)]

    def _look(self) -> None:
        """What the machine was told meanwhile."""
        self._looked_at = time.monotonic()
        shown = self.door.identity.directory if self.door.identity else None
        for url in filter(None, controllers_for(self._identity or shown).split(",")):
            self._add(url)

    def find_leader(self, timeout_seconds: float) -> bool:
        """Ask each, but for who was silent a moment ago where another was not, whether it leads a network that it
        knows; requests go to that one from now on. False if none says so in time."""
        now = time.monotonic()
        for door in [each for each in self._doors if each.silent_until <= now] or self._doors:
            connection = _Connection(door, timeout_seconds)
            try:
                connection.request("GET", "/v1/health")
                health = json.loads(connection.getresponse().read())
                if health["status"] != "standby" and health["converged"]:
                    self._asked = self._doors.index(door)
                    return True
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
                continue
            finally:
                connection.close()
        return False

    def __len__(self) -> int:
        return len(self._doors)


class _Door:
    def __init__(self, url: str, identity: Path | str | None) -> None:
        self.url = url
        self.silent_until = 0.0
        scheme, host, port = parse_url(url)
        self.identity: Identity | None = None
        self.address = host, port
        if scheme == "https":
            self.identity = identity_for(":".join(map(str, self.address)), identity)
            if self.identity is None:
                raise InvalidArgument(f"controller: {url} serves only clients with a certificate: name yours with "
                                      "--identity or SPEEDWELL_IDENTITY")


class _Nobody(_Door):
    """Stands for the first controller until there is one."""

    def __init__(self) -> None:
        self.url = OF_INSTALLATION
        self.silent_until = 0.0
        self.identity = None
        self.address = "", 0


_NOBODY = _Nobody()


class _Connection(http.client.HTTPConnection):
    """Its requests say what they are part of."""

    def __init__(self, door: _Door, timeout: float) -> None:
        super().__init__(*door.address, timeout=timeout)
        self.door = door
        self._generation = 0

    def connect(self) -> None:
        if self.door is _NOBODY:
            raise ConnectionRefusedError("the installation has no controller yet")
        self.host, self.port = self.door.address
        super().connect()
        identity = self.door.identity
        if identity is None:
            return
        self._generation = identity.generation
        try:
            self.sock = secured = identity.wrap_client(self.sock, CONTROLLER)
            refusal = identity.refusal(peer_of(secured))
        except (ssl.SSLError, IdentityError) as error:
            refusal = (explain(error) if isinstance(error, ssl.SSLError) else None) or str(error)
        if refusal:
            self.close()
            raise ConnectionError(f"https://{self.host}:{self.port}: {refusal}")

    def putrequest(self, *arguments: Any, **options: Any) -> None:
        super().putrequest(*arguments, **options)
        if traceparent := tracing.current():
            self.putheader(tracing.HEADER, traceparent)

    def request(self, *arguments: Any, **options: Any) -> None:
        if self.door.identity is not None and self._generation != self.door.identity.generation:
            self.close()    # made with a certificate that was renewed, which will end
        self.host, self.port = self.door.address    # as the request's Host
        super().request(*arguments, **options)


class _ToLeader(_Connection):
    """To whichever controller led last, when a request is made."""

    def __init__(self, controller: Controller, timeout: float) -> None:
        super().__init__(controller.door, timeout)
        self._controller = controller
        self._requested: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def connect(self) -> None:
        for left in reversed(range(len(self._controller))):
            self.door = self._controller.door
            try:
                return super().connect()
            except OSError as error:
                is_silent = isinstance(error, TimeoutError)
                self._controller.left(self.door, is_silent=is_silent, is_gone=not is_silent)
                if is_silent or not left:
                    raise

    def request(self, *arguments: Any, **options: Any) -> None:
        door = self._controller.door
        if self.door is not door:
            self.close()
            self.door = door
        self._requested = arguments, options
        super().request(*arguments, **options)

    def getresponse(self) -> http.client.HTTPResponse:
        response = self._response()
        if _stands_by(response) and self.door is not self._controller.door:
            self.close()
            self.request(*self._requested[0], **self._requested[1])
            response = self._response()
        return response

    def _response(self) -> http.client.HTTPResponse:
        try:
            response = super().getresponse()
        except TimeoutError:
            self._controller.left(self.door, is_silent=True)
            raise
        if _stands_by(response):
            self._controller.told(self.door, response.getheader(LEADER_HEADER) or "")
            self._controller.left(self.door)
        for url in filter(None, (response.getheader(STANDBY_HEADER) or "").split(",")):
            self._controller.told(self.door, url)
        return response


def _stands_by(response: http.client.HTTPResponse) -> bool:
    return response.status == HTTPStatus.SERVICE_UNAVAILABLE and response.getheader(LEADER_HEADER) is not None
