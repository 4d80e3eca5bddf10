"""What the scheduler says of turns is what the controller shows."""

from __future__ import annotations

from speedwell.controller.timeslices.told import TurnsTold
from speedwell.controller.timeslices.turns import CALM_SECONDS, TurnKeeper
from tests.unit.controller.in_process import Controller
from tests.unit.controller.test_timeslices import SLICE, Agents, star

A, B, C, D = (f"10.0.0.{number}" for number in range(1, 5))


def test_the_pair_with_the_slice_has_a_rate_and_the_others_wait_ever_longer() -> None:
    agents = Agents(TurnKeeper("xco", SLICE, star()))
    pairs = [(A, D), (B, D), (C, D)]
    for source, destination in pairs:
        agents.report(source, destination)
    for _ in range(6):
        agents.pass_slices(1, *pairs)
        told = agents.keeper.state(agents.now, 10)
        assert told["total"] == 3 and told["agents"] == 3 and told["policy"] == "xco"
        waited = [each["waited_seconds"] for each in told["turns"]]
        assert waited == sorted(waited, reverse=True) and waited[-1] == 0 and max(waited) < 3 * SLICE
        [sending] = [each for each in told["turns"] if each["rate_bps"]]
        assert {(sending["source"], sending["destination"])} == agents.sending
        assert sending["waited_seconds"] == 0 and sending["queued_bytes"] == 10**6
    assert len(agents.keeper.state(agents.now, 2)["turns"]) == 2
    silent = [(source,) for source, _ in pairs]
    agents.pass_slices(round(CALM_SECONDS / SLICE / 2), *silent)
    assert [(each["rate_bps"], each["queued_bytes"], each["waited_seconds"])
            for each in agents.keeper.state(agents.now, 10)["turns"]] == [(0.0, None, 0.0)] * 3
    agents.pass_slices(round(CALM_SECONDS / SLICE), *silent)
    assert agents.keeper.state(agents.now, 10)["turns"] == []


def test_what_was_told_is_shown_with_names_and_what_makes_no_sense_is_refused() -> None:
    controller = Controller()
    controller.application.register(TurnsTold(controller.state))
    assert controller.ask("GET", "/v1/timeslices/turns").json["heard_seconds_ago"] is None
    agents = Agents(TurnKeeper("xco-plus", SLICE, star()))
    agents.report(A, C)
    agents.report(B, C)
    told = agents.keeper.state(agents.now, 256)
    assert controller.ask("PUT", "/v1/timeslices/turns", told).status_int == 204
    shown = controller.ask("GET", "/v1/timeslices/turns").json
    assert shown["policy"] == "xco-plus" and shown["total"] == 2 and shown["heard_seconds_ago"] < 60
    assert {each["source_name"] for each in shown["turns"]} == {A, B}
    told["turns"][0]["waited_seconds"] = -1
    assert controller.ask("PUT", "/v1/timeslices/turns", told).status_int == 422
    assert controller.ask("GET", "/v1/timeslices/turns").json["turns"] == shown["turns"]
