"""Noticing that a program looks at names of a directory in their order, without having listed it.

Then one List with attributes replaces many look-ups. As with read-ahead the pages grow while what they bring is asked
for; a page that was in vain ends it, and the next one comes later.
"""

MISSES_BEFORE_LISTING = 3
FIRST_PAGE = 64
LARGEST_PAGE = 1000
PROVEN_SHARE = 8
"""A page of which one entry in so many was asked for was worth it: to list one costs a thirtieth of a look-up."""
MOST_MISSES_BEFORE_LISTING = 3 * 4**4


class LookAhead:
    """One walk at a time. What threads lose of each other's counts makes a guess worse, nothing else."""

    def __init__(self) -> None:
        self.hits = 0
        """Look-ups that the cache answered; the caller counts."""
        self._directory = self._name = b""
        self._misses = self._page = self._hits_when_listed = 0
        self._needed = MISSES_BEFORE_LISTING

    def missed(self, directory: bytes, name: bytes) -> int:
        """A look-up of an existing `name` was not in the cache: how many entries after it to list."""
        if directory != self._directory:
            self._misses, self._page, self._needed = 0, 0, MISSES_BEFORE_LISTING
        goes_on = directory != self._directory or name > self._name
        self._directory, self._name = directory, name
        self._misses = self._misses + 1 if goes_on else 1
        if self._page:
            proven = goes_on and self.hits - self._hits_when_listed >= self._page // PROVEN_SHARE
            self._needed = MISSES_BEFORE_LISTING if proven else min(self._needed * 4, MOST_MISSES_BEFORE_LISTING)
            self._page, self._misses = (self._page, self._needed) if proven else (0, 1)
        if self._misses < self._needed:
            return 0
        self._page = min(self._page * 2, LARGEST_PAGE) or FIRST_PAGE
        self._hits_when_listed = self.hits
        return self._page
