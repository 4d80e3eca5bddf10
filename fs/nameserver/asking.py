"""Who asks, for the thread that answers."""

import threading


class _Asking(threading.local):
    may_write = True


asking = _Asking()
"""`may_write`: whether the answer may hold a token to change a file."""
