"""Keys that are read most: their replicas are ready before requests are sent there, and until none is."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from speedwell.controller.metadata.hot_book import HotBook, Said
from speedwell.controller.policy.metadata.blocks import owner
from speedwell.controller.policy.metadata.layout import lay_out

SERVERS = [f"h{number}" for number in range(8)]
LAYOUT = lay_out({server: ((f"e{at // 4}",), ("a",), ("c",)) for at, server in enumerate(SERVERS)})
HOT = LAYOUT.blocks[0].first + 7


class Site:
    """A book with servers that do what they are told, and switches that hold what they are told a step later."""

    def __init__(self, room: int = 100) -> None:
        self.book, self.now = HotBook(lambda: room), 100.0
        self.alive = set(SERVERS)
        self.routes: dict[str, set[int]] = {server: set() for server in SERVERS}
        self.held: dict[tuple[str, int], tuple[str, ...]] = {}
        self.senders: dict[str, set[int]] = {}

    def say(self, server: str, reads: float, hottest: dict[int, float]) -> None:
        self.book.said(server, Said(reads, hottest, frozenset(self.routes[server])))
        self.routes[server] = self.book.replicated(server)

    def go_on(self, seconds: float = 0.1) -> None:
        self.now += seconds
        self.book.go_on(self.now, LAYOUT, self.alive)

    def sync(self) -> None:
        self.held = dict(self.book.in_force)
        self.senders = {server: {address for address, _ in prefixes}
                        for server, prefixes in self.book.senders.items()}
        self.book.synced_version = self.book.version

    def steps(self, reads: float, hottest: dict[int, float], number: int = 10) -> None:
        for _ in range(number):
            for server in sorted(self.alive):
                own = {address: rate for address, rate in hottest.items() if owner(LAYOUT.blocks, address) == server}
                self.say(server, reads + sum(own.values()), own)
            self.go_on(1.0)
            self.sync()


def test_a_key_that_one_server_is_asked_for_all_the_time_is_answered_in_every_rack():
    site = Site()
    site.steps(100.0, {HOT: 5000.0})
    assert set(site.held) == {("e0", HOT), ("e1", HOT)}
    assert {len(servers) for servers in site.held.values()} == {4}
    assert site.book.addresses == {HOT}
    site.steps(100.0, {})
    assert site.held == {} and site.book.senders == {} and not site.book.replicated("h0")


def test_even_reads_and_few_reads_spread_nothing():
    for reads, rate in ((5000.0, 500.0), (1.0, 30.0)):
        site = Site()
        site.steps(reads, {HOT: rate})
        assert site.held == {} and site.book.version == 0


def test_a_replica_that_is_silent_is_sent_nothing_more_at_once():
    site = Site()
    site.steps(100.0, {HOT: 5000.0})
    site.alive.discard(site.held["e1", HOT][0])
    site.go_on()
    assert not site.book.in_force


def test_where_there_is_no_space_nothing_is_spread():
    site = Site(room=0)
    site.steps(100.0, {HOT: 5000.0})
    assert site.held == {}


class AnyOrder(RuleBasedStateMachine):
    """Servers, switches and loads go on in any order: what a switch holds leads to servers that answer, and may do so
    from that address."""

    def __init__(self) -> None:
        super().__init__()
        self.site = Site()

    @rule(server=st.sampled_from(SERVERS), reads=st.floats(0, 1e4),
          hottest=st.dictionaries(st.sampled_from([HOT, HOT + 1, LAYOUT.blocks[-1].first]), st.floats(0, 1e5)))
    def says(self, server: str, reads: float, hottest: dict[int, float]) -> None:
        if server in self.site.alive:
            self.site.say(server, reads + sum(hottest.values()), hottest)

    @rule(seconds=st.sampled_from([0.05, 4.0]))
    def goes_on(self, seconds: float) -> None:
        self.site.go_on(seconds)

    @rule()
    def switches_hold_it(self) -> None:
        self.site.sync()

    @rule(server=st.sampled_from(SERVERS))
    def is_silent_or_back(self, server: str) -> None:
        self.site.alive ^= {server}

    @invariant()
    def what_is_held_is_answered(self) -> None:
        for (_, address), servers in self.site.held.items():
            for server in servers:
                assert address in self.site.routes[server], (server, address)
                assert address in self.site.senders[server]


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
