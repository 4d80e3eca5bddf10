"""How connections add up by destination."""

from __future__ import annotations

from speedwell.coflow import Flow
from speedwell.host_agent.connections import Connection, Senders, Sending

US, THERE, ELSEWHERE = "10.0.0.1", "10.0.1.1", "10.0.2.1"


def connection(number: int, queued: int, acknowledged: int, again: int = 0, to: str = THERE,
               source: str = US) -> Connection:
    return Connection(Flow(source, to, number, 80), number.to_bytes(8), number, queued, acknowledged, again)


def test_large_flows_add_up_by_destination_and_small_ones_do_not_count() -> None:
    senders = Senders(US, 1000)
    sums = senders.count([connection(1, 500, 500), connection(2, 3000, 0, 1), connection(3, 1, 998),
                          connection(4, 0, 5000, 2, ELSEWHERE), connection(5, 9000, 9000, source="10.9.9.9")])
    assert sums == {THERE: Sending(3500, 500, 1), ELSEWHERE: Sending(0, 5000, 2)}


def test_what_went_is_not_forgotten_with_its_connection() -> None:
    senders = Senders(US, 1000)
    senders.count([connection(1, 500, 1000, 1)])
    senders.count([connection(1, 0, 4000, 3)])
    assert senders.count([]) == {THERE: Sending(0, 4000, 3)}
    assert senders.count([connection(2, 0, 2000)]) == {THERE: Sending(0, 6000, 3)}


def test_a_sum_whose_connections_ended_is_dropped_once_it_was_told() -> None:
    senders = Senders(US, 1000)
    senders.count([connection(1, 0, 2000), connection(2, 0, 3000, to=ELSEWHERE)])
    senders.drop({THERE, ELSEWHERE})
    assert senders.count([connection(2, 0, 3000, to=ELSEWHERE)]).keys() == {THERE, ELSEWHERE}
    senders.drop({ELSEWHERE})
    assert senders.count([]).keys() == {THERE, ELSEWHERE}
    senders.drop({THERE})
    assert senders.count([]) == {ELSEWHERE: Sending(0, 3000)}
