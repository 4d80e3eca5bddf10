"""Where paths with symbolic links lead, without a nameserver."""

import pytest

from speedwell.fs.client.names.links import MAX_FOLLOWED, follow
from speedwell.fs.errors import NoSuchFile, NotADirectory, TooManySymbolicLinks
from speedwell.fs.proto.speedwell_pb2 import DIRECTORY, REGULAR, SYMBOLIC_LINK, Attributes


class Names:
    """Directories end in a slash, links have a target, the rest are files."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = {name.rstrip("/").encode() or b"/": (
            Attributes(type=SYMBOLIC_LINK, target=target.encode()) if target else
            Attributes(type=DIRECTORY if name.endswith("/") else REGULAR)) for name, target in names.items()}

    def lookup(self, path: str | bytes, fresh: bool = False) -> Attributes:
        assert isinstance(path, bytes)
        if path not in self._names:
            raise NoSuchFile(path.decode())
        return self._names[path]


NAMES = Names({"/": "", "/d/": "", "/d/e/": "", "/d/file": "", "/up": "d/e/..", "/d/absolute": "/up/file",
               "/d/e/back": "../../up/./absolute", "/self": "self", "/ping": "pong", "/pong": "/ping",
               "/dangling": "d/none", "/lost": "none/x", "/d/slash": "e/"})


@pytest.mark.parametrize(("path", "end"), [
    ("/", "/"), ("/d/file", "/d/file"), ("/up", "/d"), ("/up/file", "/d/file"), ("/d/absolute", "/d/file"),
    ("/d/e/back", "/d/file"), ("/dangling", "/d/none"), ("/up/new", "/d/new"), ("/d/slash", "/d/e"),
    ("/up/slash/back", "/d/file")])
def test_a_path_leads_where_the_kernel_would_lead_it(path: str, end: str) -> None:
    assert follow(NAMES, path.encode()) == end.encode()


def test_the_last_name_is_kept_where_that_is_wanted() -> None:
    assert follow(NAMES, b"/up/absolute", last=False) == b"/d/absolute"
    assert follow(NAMES, b"/up", last=False) == b"/up"


@pytest.mark.parametrize(("path", "error"), [
    ("/self", TooManySymbolicLinks), ("/ping/x", TooManySymbolicLinks), ("/d/file/x", NotADirectory),
    ("/none/x", NoSuchFile), ("/lost", NoSuchFile)])
def test_what_leads_nowhere_is_refused(path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        follow(NAMES, path.encode())


def test_so_many_links_are_followed_and_not_one_more() -> None:
    chain = Names({"/": "", "/l0": "", **{f"/l{number}": f"l{number - 1}" for number in range(1, MAX_FOLLOWED + 2)}})
    assert follow(chain, b"/l%d" % MAX_FOLLOWED) == b"/l0"
    with pytest.raises(TooManySymbolicLinks):
        follow(chain, b"/l%d" % (MAX_FOLLOWED + 1))
