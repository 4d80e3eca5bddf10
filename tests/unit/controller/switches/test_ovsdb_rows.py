"""Whatever a switch's database says: what can be is taken, what cannot be is told, and nothing else happens."""

from __future__ import annotations

import json
from typing import Any

import eventlet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.controller.switches import ovsdb
from speedwell.controller.switches.ovsdb import (
    Database,
    DatabaseUnreachable,
    capacities_of,
    limits_to_write,
    read_capacities,
)

DPID = "000000000000001a"
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
              st.sampled_from(["set", "map", "uuid", "capacity_bps", "max-rate", "1e999", "NaN", "-1", DPID])),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8)
COLUMNS = st.sampled_from(["_uuid", "ports", "datapath_id", "interfaces", "qos", "ofport", "external_ids",
                           "link_speed", "other_config"])
BAD_ROWS = st.lists(st.dictionaries(COLUMNS, JSON, max_size=6), max_size=4)


def good_rows(**interface: Any) -> dict[str, list[dict[str, Any]]]:
    return {"Bridge": [{"datapath_id": DPID, "ports": ["uuid", "good port"]}],
            "Port": [{"_uuid": ["uuid", "good port"], "interfaces": ["uuid", "good"], "qos": ["set", []]}],
            "Interface": [{"_uuid": ["uuid", "good"], "ofport": 3, "link_speed": ["set", []],
                           "external_ids": ["map", [["capacity_bps", "5e6"]]], **interface}],
            "QoS": []}


@settings(max_examples=300, deadline=None)
@given(bad=st.fixed_dictionaries(dict.fromkeys(("Bridge", "Port", "Interface", "QoS"), BAD_ROWS)))
def test_a_good_row_counts_whatever_stands_beside_it(bad: dict[str, list[Any]]) -> None:
    told: list[str] = []
    good = good_rows()
    capacities = capacities_of({table: [*bad[table], *good[table]] for table in good}, DPID, told.append)
    assert capacities[3] == 5e6
    assert all(0 < port_no <= ovsdb.MAX_PORT_NO and ovsdb.MIN_RATE_BPS <= bps <= ovsdb.MAX_RATE_BPS
               for port_no, bps in capacities.items())
    assert all(len(problem) < 300 for problem in told)


@pytest.mark.parametrize("capacity", ["1e999", "NaN", "-5", "0", "", "x" * 1_000_000, True, None, ["set", []], 1e300])
def test_a_capacity_that_no_port_has_is_none(capacity: Any) -> None:
    rows = good_rows(external_ids=["map", [["capacity_bps", capacity]]])
    assert capacities_of(rows, DPID) == {}


@pytest.mark.parametrize("changes", [
    {"external_ids": ["map", [["capacity_bps"]]]}, {"external_ids": 5}, {"external_ids": []}, {"_uuid": []},
    {"_uuid": ["set", [["set"]]]}, {"_uuid": ["uuid", {"not": "hashable"}]}])
def test_a_row_that_cannot_be_is_told(changes: dict[str, Any]) -> None:
    told: list[str] = []
    assert capacities_of(good_rows(**changes), DPID, told.append) == {}
    assert len(told) == 1 and told[0].startswith("a row of Interface cannot be")


@settings(max_examples=200, deadline=None)
@given(messages=st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=4), sizes=st.lists(
    st.integers(1, 9), min_size=1))
def test_messages_are_told_apart_wherever_they_are_cut(messages: list[Any], sizes: list[int]) -> None:
    text = b" ".join(json.dumps(message, ensure_ascii=False).encode() for message in messages
                     if json.dumps(message, ensure_ascii=False).isprintable())
    wanted = [message for message in messages if json.dumps(message, ensure_ascii=False).isprintable()]
    found = [json.loads(each) for each in ovsdb._objects(_cut(text, sizes))]
    assert repr(found) == repr([json.loads(json.dumps(message)) for message in wanted])


def _cut(text: bytes, sizes: list[int]) -> Any:
    rest, turn = bytearray(text), iter(sizes * (len(text) + 1))

    def receive(_: int) -> bytes:
        size = next(turn)
        piece = bytes(rest[:size])
        del rest[:size]
        return piece

    return receive


def answered(*pieces: bytes) -> int:
    """The port of a database that gives these answers, whatever it is asked."""
    listening = eventlet.listen(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        connection.recv(1 << 16)
        for piece in pieces:
            try:
                connection.sendall(piece)
            except OSError:
                break
        connection.close()

    eventlet.spawn(serve)
    port: int = listening.getsockname()[1]
    return port


RESULT = b'{"id": 1, "error": null, "result": %s}'
HOSTILE = {
    "nothing": [], "no JSON": [b"}"], "no UTF-8": [b'{"id": 1, "x": "\xff"}'],
    "too long": [b" " * (1 << 20)] * 9, "too long and no UTF-8": [b"\xff" * (1 << 20)] * 9,
    "nested deeply": [b'{"id": 1, "result": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"],
    "no list": [RESULT % b"5"], "too few results": [RESULT % b"[]"], "no objects": [RESULT % b"[1, 2, 3, 4]"],
    "no rows": [RESULT % b'[{"rows": 5}, {"rows": 5}, {"rows": 5}, {"rows": 5}]'],
    "rows that are none": [RESULT % b'[{"rows": [1]}, {"rows": [1]}, {"rows": [1]}, {"rows": [1]}]'],
    "a long refusal": [RESULT % (b'[{"error": "' + b"x" * 1_000_000 + b'"}, {}, {}, {}]')],
    "a question that is none": [b'{"method": "echo"}'],
}


@pytest.mark.parametrize("pieces", HOSTILE.values(), ids=HOSTILE)
def test_a_database_that_answers_nonsense_is_unreachable(pieces: list[bytes]) -> None:
    with pytest.raises(DatabaseUnreachable) as caught:
        read_capacities(Database("127.0.0.1", answered(*pieces), DPID), 10.0)
    assert len(str(caught.value)) < 500


def test_a_limit_that_is_no_number_is_unreadable_and_nothing_else() -> None:
    rows = {"Bridge": [{"datapath_id": DPID, "controller": ["uuid", "c"]}],
            "Controller": [{"_uuid": ["uuid", "c"], "target": "t", "controller_rate_limit": float("inf")}]}
    with pytest.raises(ovsdb.BAD_ROW):
        limits_to_write(rows, DPID, "t", 1000)
