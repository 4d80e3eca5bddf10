"""Where the SDN controller answers over HTTP, and connections to it: over TLS at https://, with our certificate."""

import http.client
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from speedwell.fs import tracing
from speedwell.fs.errors import IdentityError, InvalidArgument
from speedwell.fs.identity.bundle import Identity, explain, peer_of
from speedwell.fs.identity.known import identity_for
from speedwell.fs.identity.roles import CONTROLLER


class Controller:
    """One at `url`. Thread-safe; its connections are for one thread each."""

    def __init__(self, url: str, identity: Path | str | None = None) -> None:
        """`identity` is the directory of ours, by default that of SPEEDWELL_IDENTITY or what `up` made on this
        machine. Raises InvalidArgument for what is not http[s]://HOST[:PORT], and for https:// without an identity;
        IdentityError."""
        self.url = url.rstrip("/")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https") or parts.path not in ("", "/") or parts.query:
            raise InvalidArgument(f"controller: {url!r} is not http://HOST[:PORT] or https://HOST[:PORT]")
        self._identity = None
        self._address = host, port or (443 if parts.scheme == "https" else 80)
        if parts.scheme == "https":
            self._identity = identity_for(":".join(map(str, self._address)), identity)
            if self._identity is None:
                raise InvalidArgument(f"controller: {url} takes only who has a certificate: name yours with "
                                      "--identity or SPEEDWELL_IDENTITY")

    def connect(self, timeout_seconds: float) -> http.client.HTTPConnection:
        """A connection that is made with the first request. That raises OSError, http.client.HTTPException."""
        if self._identity is None:
            return _Connection(*self._address, timeout=timeout_seconds)
        return _SecureConnection(self._identity, *self._address, timeout=timeout_seconds)


class _Connection(http.client.HTTPConnection):
    """Its requests say what they are part of."""

    def putrequest(self, *arguments: Any, **options: Any) -> None:
        super().putrequest(*arguments, **options)
        if traceparent := tracing.current():
            self.putheader(tracing.HEADER, traceparent)


class _SecureConnection(_Connection):
    def __init__(self, identity: Identity, host: str, port: int, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout)
        self._identity = identity
        self._generation = 0

    def connect(self) -> None:
        super().connect()
        self._generation = self._identity.generation
        try:
            self.sock = secured = self._identity.wrap_client(self.sock, CONTROLLER)
            refusal = self._identity.refusal(peer_of(secured))
        except (ssl.SSLError, IdentityError) as error:
            refusal = (explain(error) if isinstance(error, ssl.SSLError) else None) or str(error)
        if refusal:
            self.close()
            raise ConnectionError(f"https://{self.host}:{self.port}: {refusal}")

    def request(self, *arguments: Any, **options: Any) -> None:
        if self._generation != self._identity.generation:
            self.close()    # made with a certificate that was renewed, which will end
        super().request(*arguments, **options)
