"""Who asks, for the thread that answers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from speedwell.fs.nameserver.service.authorization import Authorization


class _Asking(threading.local):
    may_write = True
    client = ""
    serial = ""
    authorization: Authorization | None = None
    advised: Sequence[int] = ()


asking = _Asking()
"""`may_write`: whether the answer may hold a token to change a file. `client`: whom alone its tokens are for; empty:
everybody; `serial` is its certificate's. `authorization`: where the certificate has a scope. `advised`:
on which dataservers a new file should be."""
