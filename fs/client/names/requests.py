"""Requests to the nameservers of a namespace: each change is carried out once, however often it is sent."""

import secrets
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from speedwell.fs import tracing
from speedwell.fs.client.names.attribute_cache import AttributeCache
from speedwell.fs.client.names.nameservers import Nameservers
from speedwell.fs.errors import InvalidArgument
from speedwell.fs.slots import BLOCK_SHIFT, block_of_request

Ask = Callable[[str, Any], Any]
"""The reply to a request of a method: `Requests.ask`."""


class Requester:
    """Somebody who has one change after the other carried out: the nameserver remembers the last one of each."""

    def __init__(self, block: int) -> None:
        """What the nameserver remembers lies in that block of the namespace (`speedwell.fs.slots`)."""
        self.number = block << BLOCK_SHIFT | secrets.randbits(BLOCK_SHIFT) or 1
        self.sequence = 0


class Requests:
    """Those of one client. Thread-safe. Every method raises what `Nameservers.call` does."""

    def __init__(self, nameservers: Nameservers, cache: AttributeCache) -> None:
        self._nameservers = nameservers
        self._cache = cache
        self._requesters: defaultdict[int, list[Requester]] = defaultdict(list)      # by block

    def ask(self, method: str, request: Any) -> Any:
        """The reply to what may be carried out several times."""
        return tracing.asking(method, self._nameservers.call, method, request)

    def once(self, method: str, request: Any) -> Any:
        """The reply to what is carried out at most once, though it may be sent several times."""
        block = block_of_request(request)
        idle = self._requesters[block]
        try:
            requester = idle.pop()
        except IndexError:
            requester = Requester(block)
        requester.sequence += 1
        request.id.requester, request.id.sequence = requester.number, requester.sequence
        try:
            return self.ask(method, request)
        finally:
            idle.append(requester)

    def change(self, method: str, request: Any, path: bytes) -> Any:
        """As `once`, of a change of `path`; if it fails, what is cached about the path is in doubt."""
        try:
            return self.once(method, request)
        except BaseException:
            self._cache.gone(path)
            raise


def message(kind: Callable[..., Any], **fields: Any) -> Any:
    """A request, with a number that does not fit its field turned into InvalidArgument."""
    try:
        return kind(**fields)
    except (ValueError, TypeError) as error:
        for name, value in fields.items():
            try:
                kind(**{name: value})
            except (ValueError, TypeError):
                raise InvalidArgument(f"{name}: {value!r} is out of range") from error
        raise
