"""Reads under mayflower-plus: they wait, begin and grow as its policy says, and nothing of them is left behind."""

import json
from typing import Any

import eventlet
import pytest

from speedwell.controller.errors import InvalidSettings, SwitchRefused
from speedwell.controller.policy.reads.selection_request import Replica
from speedwell.controller.reads import read_divisions
from speedwell.controller.reads.book import Read, ReadRequest, TooManyWaiting, UnknownRead
from speedwell.controller.settings import load_settings
from tests.unit.controller.in_process import EDGES, HOSTS, Controller, clocked, read_of
from tests.unit.controller.reads.test_flowserver import agree, idled_out, measured

A, B, C, D = HOSTS                      # A and B are servers in one rack, C and D clients in the other
SIZE_BYTES = 10 ** 8
PLUS = "mayflower-plus"


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    """Time stands still, however long a busy machine takes: what flows have left counts in divisions."""
    clocked(monkeypatch)
    return Controller()


def place(controller: Controller, client: str, *servers: str, follows: bool = True, most_parts: int | None = None,
          ports: tuple[int, ...] = (40000, 40001), size_bytes: int = SIZE_BYTES) -> Read:
    return controller.flowserver.place(ReadRequest(
        client, ports, [Replica(server, 7000) for server in servers], size_bytes, replica_policy=PLUS,
        most_parts=most_parts, follows=follows))


def soon() -> None:
    """Let what was started in the background come to its end: nothing here waits for time."""
    for _ in range(20):
        eventlet.sleep(0)


def sources(read: Read) -> list[str]:
    return [part.five_tuple.source for part in read.running]


def test_a_read_waits_until_something_is_free_and_then_begins(controller: Controller) -> None:
    first, second = place(controller, C, A), place(controller, D, A)
    assert (sources(first), second.parts) == ([A], [])
    assert [entry.destination for entry in controller.tables.entries] == [C]

    news = eventlet.spawn(controller.flowserver.follow, second.id, 0, 5.0)
    eventlet.sleep(0)
    controller.flowserver.end(first.id)

    read = news.wait()
    assert read is second and read.following is not None and read.following.revision == 1
    (part,) = read.parts
    assert part.placed and part.five_tuple.destination_port == 40000 and part.size_bytes == SIZE_BYTES
    agree(controller)
    controller.flowserver.end(second.id)
    agree(controller)


def test_a_running_read_gets_a_part_on_what_has_become_free(controller: Controller) -> None:
    """A and B send half of what they can to C. B's other half goes to A, so D reads from A alone at first."""
    _, _, first = (controller.flowserver.place(ReadRequest(client, [30000], [Replica(server, 7000)], SIZE_BYTES,
                                                           replica_policy="nearest"))
                   for client, server in ((C, A), (C, B), (A, B)))
    second = place(controller, D, A, B)
    assert sources(second) == [A] and second.parts[0].size_bytes == SIZE_BYTES

    controller.flowserver.end(first.id)
    soon()

    assert sources(second) == [A, B]
    assert [part.number for part in second.parts] == [0, 1]
    assert [part.five_tuple.destination_port for part in second.parts] == [40000, 40001]
    assert sum(part.size_bytes for part in second.parts) == pytest.approx(SIZE_BYTES, rel=1e-3)
    agree(controller)


def test_a_client_that_does_not_follow_gets_its_read_at_once_and_whole(controller: Controller) -> None:
    place(controller, C, A)
    read = place(controller, D, A, B, follows=False)
    assert read.following is None and [part.size_bytes for part in read.parts] == [SIZE_BYTES]
    alone = place(controller, D, A, follows=False, ports=(40002,))
    assert sources(alone) == [A]
    agree(controller)


def test_what_is_left_is_told_to_the_policy_as_the_counters_show_it(
        controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers give half a link. One part is faster than expected: what is left is divided evenly again."""
    clocked(monkeypatch)
    for number, server in enumerate((A, B)):
        controller.flowserver.place(ReadRequest(D, [30000 + number], [Replica(server, 7000)], 10 ** 10,
                                                replica_policy="nearest"))
    read = place(controller, C, A, B)
    first, second = read.parts
    measured(controller, (first, 0, 0.5), (second, 0, 0.5))
    measured(controller, (first, 30_000_000, 1.0), (second, 10_000_000, 1.0))
    left = (first.size_bytes - 30_000_000, second.size_bytes - 10_000_000)
    assert sum(left) == SIZE_BYTES - 40_000_000
    assert left[0] == pytest.approx(left[1], rel=0.01)


@pytest.mark.parametrize("while_asking", [False, True])
def test_a_waiting_read_whose_client_died_is_forgotten(
        controller: Controller, monkeypatch: pytest.MonkeyPatch, while_asking: bool) -> None:
    now = clocked(monkeypatch)
    first, second = place(controller, C, A), place(controller, D, A)
    if while_asking:
        eventlet.spawn(controller.flowserver.follow, second.id, 0, 0.01)
        eventlet.sleep(0)
        now[0] += read_divisions.SILENCE_SECONDS + 1
        measured(controller)
        assert controller.reads.get(second.id) is second, "it waits for an answer"
        eventlet.sleep(0.02)
    now[0] += read_divisions.SILENCE_SECONDS + 1
    measured(controller)
    assert controller.reads.get(second.id) is None
    controller.flowserver.end(first.id)
    soon()
    assert controller.tables.entries == {} and controller.flowserver.model() == {}
    with pytest.raises(UnknownRead):
        controller.flowserver.follow(second.id, 0, 0)


def test_a_running_read_whose_client_died_gets_nothing_more_and_idles_out(
        controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    now = clocked(monkeypatch)
    blocking, dead = place(controller, C, B), place(controller, D, A, B, size_bytes=10 ** 10)
    assert sources(dead) == [A]
    controller.flowserver.place(ReadRequest(C, [30000], [Replica(A, 7000)], SIZE_BYTES, replica_policy="nearest"))
    now[0] += read_divisions.SILENCE_SECONDS + 1
    measured(controller)
    controller.flowserver.end(blocking.id)
    soon()
    assert sources(dead) == [A], "B is free, but nobody would read from it"
    controller.flowserver.flows_ended(idled_out(dead.parts[0]))
    assert controller.reads.get(dead.id) is None


def test_a_part_whose_entry_is_refused_is_taken_back_and_tried_again(controller: Controller) -> None:
    first, second = place(controller, C, A), place(controller, D, A)
    controller.flowserver.end(first.id)
    controller.tables.failures = [SwitchRefused(EDGES[0], "type", "code")]
    soon()
    assert second.running == [] and second.following is not None and second.following.revision == 0
    assert controller.reads.get(second.id) is second
    agree(controller)
    measured(controller)
    soon()
    assert sources(second) == [A] and second.following.revision == 1
    answer = json.loads(controller.ask("GET", f"/v1/reads/{second.id}").body)
    assert [part["number"] for part in answer["parts"]] == [1], "the one that did not come about is not shown"
    agree(controller)


def test_a_replica_that_the_client_gave_up_is_not_given_again(controller: Controller) -> None:
    for number, server in enumerate((A, B)):
        controller.flowserver.place(ReadRequest(D, [30000 + number], [Replica(server, 7000)], 10 ** 10,
                                                replica_policy="nearest"))
    read = place(controller, C, A, B)
    assert len(read.running) == 2
    given_up = read.parts[0].five_tuple.source
    controller.flowserver.end_part(read.id, 0)
    for flow in controller.reads.flows():
        if flow.five_tuple.destination == D:
            controller.flowserver.end(flow.read_id)
    soon()
    assert given_up not in sources(read) and len(read.running) == 1
    agree(controller)


def test_whoever_waits_hears_that_the_read_has_ended(controller: Controller) -> None:
    place(controller, C, A)
    second = place(controller, D, A)
    news = eventlet.spawn(controller.flowserver.follow, second.id, 0, 5.0)
    eventlet.sleep(0)
    controller.flowserver.end(second.id)
    with pytest.raises(UnknownRead):
        news.wait()


def test_no_more_questions_wait_than_there_is_room_for(
        controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_divisions, "MOST_WAITING", 1)
    place(controller, C, A)
    second = place(controller, D, A)
    waits = eventlet.spawn(controller.flowserver.follow, second.id, 0, 0.05)
    eventlet.sleep(0)
    with pytest.raises(TooManyWaiting):
        controller.flowserver.follow(second.id, 0, 5.0)
    assert ask(controller, second, "?after=0&wait_seconds=1")["type"].endswith("too-many-waiting")
    assert ask(controller, second, "?after=0")["revision"] == 0
    assert waits.wait() is second


def test_divisions_come_and_go_with_their_reads_without_a_trace(controller: Controller) -> None:
    def come_and_go(number: int) -> None:
        read = place(controller, (C, D)[number % 2], A, B, ports=(41000 + 2 * number, 41001 + 2 * number))
        for _ in range(number % 5):
            eventlet.sleep(0)
        controller.flowserver.end(read.id)

    pool = eventlet.GreenPool(20)
    for number in range(100):
        pool.spawn(come_and_go, number)
    pool.waitall()
    soon()
    assert len(controller.reads) == 0 and controller.tables.entries == {} and controller.flowserver.model() == {}
    assert controller.flowserver._selector.revise(1e9) == []


# --- the interface ---


def ask(controller: Controller, read: Read, query: str = "") -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(controller.ask("GET", f"/v1/reads/{read.id}{query}").body)
    return answer


def test_a_read_that_waits_is_answered_without_parts(controller: Controller) -> None:
    place(controller, C, A)
    answer = controller.ask("POST", "/v1/reads", read_of(
        client=D, replicas=[{"host": A, "port": 7000}], replica_policy=PLUS, follows=True))
    assert answer.status_int == 201
    body = json.loads(answer.body)
    assert (body["parts"], body["revision"], body["path_policy"]) == ([], 0, "mayflower")


def test_a_read_of_another_policy_has_no_revision_and_is_answered_at_once(controller: Controller) -> None:
    read = controller.flowserver.place(ReadRequest(C, [40000], [Replica(A, 7000)], SIZE_BYTES, follows=True))
    assert ask(controller, read, "?after=0&wait_seconds=10")["revision"] is None


@pytest.mark.parametrize(("query", "field"), [
    ("after=-1", "after"), ("after=x", "after"), ("after=1&after=2", "after"), ("before=1", "before"),
    ("after=0&wait_seconds=11", "wait_seconds"), ("wait_seconds=-1", "wait_seconds"),
    ("wait_seconds=nan", "wait_seconds")])
def test_a_bad_question_is_refused_by_name(controller: Controller, query: str, field: str) -> None:
    read = place(controller, C, A)
    answer = controller.ask("GET", f"/v1/reads/{read.id}?{query}")
    assert answer.status_int == 422 and json.loads(answer.body)["errors"][0]["field"] == field


def test_a_path_policy_beside_mayflower_plus_is_refused(controller: Controller) -> None:
    answer = controller.ask("POST", "/v1/reads", read_of(replica_policy=PLUS, path_policy="ecmp"))
    assert answer.status_int == 422 and "mayflower-plus chooses paths itself" in answer.text
    by_default = Controller(replica_policy=PLUS)
    answer = by_default.ask("POST", "/v1/reads", read_of(path_policy="ecmp"))
    assert answer.status_int == 422 and json.loads(answer.body)["errors"][0]["field"] == "path_policy"
    assert len(controller.reads) == len(by_default.reads) == 0
    with pytest.raises(InvalidSettings, match="path_policy"):
        load_settings(replica_policy=PLUS, path_policy="ecmp")


def test_mayflower_plus_may_be_the_default_and_goes_beside_a_default_of_hashed_paths() -> None:
    by_default = Controller(replica_policy=PLUS)
    assert json.loads(by_default.ask("POST", "/v1/reads", read_of()).body)["replica_policy"] == PLUS
    hashed = Controller(path_policy="ecmp")
    body = json.loads(hashed.ask("POST", "/v1/reads", read_of(replica_policy=PLUS)).body)
    assert (body["replica_policy"], body["path_policy"]) == (PLUS, "mayflower")
