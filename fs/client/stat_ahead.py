"""Noticing that a program looks at one file of a directory after the other (`ls -l`, `find`, `rsync`).

Then one List with attributes replaces hundreds of look-ups. Like read-ahead, the pages grow while the
guess proves right, and a guess that proved wrong makes the next one come later.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

MISSES_BEFORE_LISTING = 3
MOST_MISSES_BEFORE_LISTING = 3 * 4**4
FIRST_PAGE = 64
LARGEST_PAGE = 1000
PROVEN_SHARE = 8
"""A listing that spared a look-up for one in so many of its entries was worth it: listing an entry costs
about a thirtieth of a look-up."""
MAX_DIRECTORIES = 256


@dataclass(frozen=True, slots=True)
class Page:
    """Entries to ask for: `limit` of those with names after `after`."""

    after: bytes
    limit: int


@dataclass(slots=True)
class _Walk:
    last_name: bytes
    misses: int = 0
    needed_misses: int = MISSES_BEFORE_LISTING
    page: int = 0
    listed: int = 0
    hits_when_listed: int = 0


class StatAhead:
    """Remembers the look-ups that missed the cache, for a bounded number of directories. Thread-safe."""

    def __init__(self) -> None:
        self.hits = 0
        """Look-ups that the cache answered; the caller counts (a lost count does no harm)."""
        self._walks: OrderedDict[bytes, _Walk] = OrderedDict()
        self._lock = threading.Lock()

    def missed(self, directory: bytes, name: bytes) -> Page | None:
        """A look-up of an existing `name` was not in the cache; what to list, if it looks like a walk.

        A walk in the order of names (the order of our listings) lists on from where it is; any other
        order begins at the directory's first name.
        """
        with self._lock:
            walk = self._walks.pop(directory, None) or _Walk(name)
            self._walks[directory] = walk
            if len(self._walks) > MAX_DIRECTORIES:
                self._walks.popitem(last=False)
            ascending, walk.last_name = name > walk.last_name, name
            walk.misses += 1
            if walk.page:
                self._judge(walk)
            if walk.misses < walk.needed_misses:
                return None
            walk.page = min(walk.page * 2, LARGEST_PAGE) if walk.page else FIRST_PAGE
            return Page(name, walk.page) if ascending else Page(b"", LARGEST_PAGE)

    def _judge(self, walk: _Walk) -> None:
        """Whether the last listing spared enough look-ups to go on at once."""
        if self.hits - walk.hits_when_listed >= max(walk.listed // PROVEN_SHARE, 1):
            walk.needed_misses = MISSES_BEFORE_LISTING
            walk.misses = walk.needed_misses
        else:
            walk.needed_misses = min(walk.needed_misses * 4, MOST_MISSES_BEFORE_LISTING)
            walk.misses = 1
            walk.page = 0

    def listed(self, directory: bytes, entry_count: int) -> None:
        """The page that `missed` asked for has come, with so many entries."""
        with self._lock:
            walk = self._walks.get(directory)
            if walk is not None:
                walk.listed = entry_count
                walk.hits_when_listed = self.hits
