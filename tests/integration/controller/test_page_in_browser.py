"""The page in a real browser, of a controller with simulated switches."""

from __future__ import annotations

import contextlib
import json
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPResponse
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import requests

from speedwell.cluster import identities
from speedwell.fs.identity import bearer
from speedwell.fs.identity.roles import CONTROLLER
from speedwell.topo.fabric import three_tier
from tests.chromium import Browser, browser
from tests.etcd import EtcdCluster, free_ports, requires_etcd
from tests.integration.controller.page_site import (
    VIEWS,
    Cable,
    assert_every_view_tells,
    controller_of,
    pick_link,
    told,
)
from tests.unit.controller.controller_process import controller_process
from tests.waiting import wait_until

FABRIC = three_tier(4, 4, 4, host_bps=1e9)


@pytest.fixture(scope="module", name="url")
def _url() -> Iterator[str]:
    with controller_of(FABRIC, 8) as (url, _):
        yield url


@pytest.fixture(name="page")
def _page(url: str) -> Iterator[Browser]:
    with browser() as page:
        page.show(1280, 800)
        page.open(url)
        page.until("document.querySelector('#picture').dataset.firstMs")
        yield page
        assert not page.problems


def test_the_fabric_is_drawn_with_its_loads_and_every_view_tells_what_runs(page: Browser) -> None:
    assert page.value("({...document.querySelector('#picture').dataset})").items() >= {
        "nodes": "90", "links": "112"}.items()
    page.until("document.querySelector('#summary').innerText.includes('33 %')")
    page.until("document.querySelector('#status').textContent == 'ok'")     # it may be converging
    assert page.text("#counts").startswith("26 switches · 64 hosts · 8 reads")
    assert_every_view_tells(page, told(FABRIC))


def test_a_link_leads_to_its_flows_and_a_flow_to_its_path_and_why_it_was_chosen(page: Browser) -> None:
    link = """(() => { const { model, picture } = speedwell, flow = model.flows(model.frame)[0];
        return picture.whereIs(model.fabric.links[model.fabric.link(flow.path[0], flow.path[1])]); })()"""
    page.click(**page.value(link))
    page.until("document.querySelector('#detail h2').innerText.startsWith('Link')")
    page.value("document.querySelector('#detail tr[tabindex]').click()")
    assert page.text("#detail h2").startswith("Read by")
    told = page.text("#detail")
    assert "edge-p" in told and "Why this replica" in told and told.count("taken") == 1
    assert len(page.value("[...document.querySelectorAll('#detail tbody tr')].map((row) => row.innerText)")) == 3
    page.press("Escape")
    assert page.value("document.querySelector('#detail').hidden")


def test_a_read_of_mayflower_plus_says_what_each_replica_had_to_spare(page: Browser, url: str) -> None:
    answer = requests.post(f"{url}v1/reads", timeout=30, json={
        "client": "10.3.0.2", "client_ports": [7001], "size_bytes": 1 << 30, "replica_policy": "mayflower-plus",
        "replicas": [{"host": host, "port": 7100} for host in ("10.3.1.2", "10.2.0.2", "10.1.0.2")]})
    assert answer.status_code == 201, answer.text
    key = f"{answer.json()['id']}/"
    page.until(f"speedwell.model.flows(speedwell.model.frame).some((flow) => flow.key.startsWith('{key}'))")
    page.value(f"speedwell.pick({{ kind: 'flow', flow: '{key}' }})")
    rows = page.value("[...document.querySelectorAll('#detail tbody tr')].map("
                      "(row) => [...row.cells].map((cell) => cell.innerText))")
    assert len(rows) == 3 and [row[2] for row in rows].count("taken") == 1
    assert rows[0][2] == "taken" or rows[0][1] == next(row[1] for row in rows if row[2] == "taken")
    assert "most to spare" in page.text("#detail")
    requests.delete(f"{url}v1/reads/{key[:-1]}", timeout=30).raise_for_status()


def test_turns_say_who_has_the_slice_who_waits_and_for_how_long(page: Browser) -> None:
    page.press("3")
    rows = page.until("""(() => { const rows = [...document.querySelectorAll('#panel tbody tr')];
        return rows.length === 7 && rows.map((row) => [...row.cells].map((cell) => cell.innerText)); })()""")
    assert rows[0][1:] == ["1.0 Gbit/s", "\u2013", "2.9 MiB"]
    assert [row[1] for row in rows[1:]] == ["holds"] * 6 and rows[6][2:] == ["120 ms", "20 MiB"]
    page.value("document.querySelector('#panel tbody tr').click()")
    assert page.text("#detail h2").startswith("Host 10.")


def test_the_tree_of_keys_goes_from_the_core_to_each_servers_blocks_and_folds(page: Browser) -> None:
    page.press("5")
    page.until("document.querySelectorAll('#panel .leaf').length === 6")
    owned = page.value("speedwell.model.blocks.filter((block) => block.host).length")
    assert page.value("document.querySelectorAll('#panel .leaf code').length") == owned
    ways = page.value("""[...document.querySelectorAll('#panel .leaf')].map((leaf) => {
        const way = [];
        for (let at = leaf.closest('details'); at; at = at.parentElement.closest('details'))
          way.unshift(at.querySelector('summary').innerText.split(/[-0-9]/)[0]);
        return way.join(' '); })""")
    assert ways == ["core aggregation edge"] * 6
    page.value("document.querySelectorAll('#panel summary')[1].click()")
    seen = page.value("speedwell.model.frame.at")
    page.until(f"speedwell.model.frame.at > {seen} && !document.querySelectorAll('#panel details')[1].open")
    page.until("document.querySelectorAll('#panel details')[2].open")


def test_storage_says_who_leads_and_shows_who_needs_care_first(page: Browser) -> None:
    page.press("6")
    page.until("document.querySelectorAll('#panel table').length === 2")
    told = page.text("#panel")
    assert "10.255.0.1:7000\tleads" in told and "10.255.0.1:7001\tstands by" in told
    states = page.value("[...document.querySelectorAll('#panel table:last-of-type tbody tr')].map("
                        "(row) => row.cells[1].innerText)")
    assert len(states) == 64 and set(states[3:]) == {"alive"}
    assert states[0].startswith("dead") and states[1:3] == ["1 disk failed", "draining"]
    fill = page.value("[...document.querySelectorAll('#panel meter')].slice(3).map((each) => each.value)")
    assert fill == sorted(fill, reverse=True) and fill[0] > fill[-1]


def test_a_row_can_be_clicked_while_frames_come(page: Browser) -> None:
    page.press("1")
    page.until("document.querySelector('#panel tr[tabindex]')?.dataset.key")
    button = {"button": "left", "clickCount": 1, **page.value("""(() => {
        const { x, y, width, height } = document.querySelector('#panel tr[tabindex] td').getBoundingClientRect();
        return { x: x + width / 2, y: y + height / 2 }; })()""")}
    page.ask("Input.dispatchMouseEvent", type="mousePressed", **button)
    page.until(f"speedwell.model.frame.at > {page.value('speedwell.model.frame.at')}")
    page.ask("Input.dispatchMouseEvent", type="mouseReleased", **button)
    page.until("document.querySelector('#detail h2')?.innerText.startsWith('Read by')")


def test_all_of_it_can_be_reached_by_keyboard(page: Browser) -> None:
    page.value("document.querySelector('#picture').focus()")
    page.press("ArrowRight", "ArrowDown")
    assert page.text("#detail h2").startswith("Switch aggregation")
    page.press("ArrowDown", "ArrowDown", "ArrowRight")
    assert page.text("#detail h2").startswith("Host 10.")
    page.press("Enter")
    assert page.text("#detail h2").startswith("Link")
    page.press("+", "+", "+")
    assert int(page.until("Number(document.querySelector('#picture').dataset.drawn) < 112 "
                          "&& document.querySelector('#picture').dataset.drawn")) > 0
    page.press("0")
    page.until("document.querySelector('#picture').dataset.drawn === '112'")
    page.press("1")
    page.value("document.querySelector('#panel tr[tabindex]').focus()")
    page.press("ArrowDown", "Enter")
    page.until("document.querySelector('#detail h2').innerText.startsWith('Read by')")
    page.press("?")
    assert page.value("document.querySelector('#help').open") and "a minute back" in page.text("#help")


def test_the_past_can_be_looked_at_also_by_who_comes_late(page: Browser, url: str) -> None:
    page.until("speedwell.model.frames.length && Date.now() / 1000 - speedwell.model.frames[0].at > 7")
    page.open(url)      # of the five seconds and more before, a frame was kept
    page.until("speedwell.model.frames.length > 3")
    opened = "performance.timeOrigin / 1000"
    earliest = page.until(f"speedwell.model.frames[0].at < {opened} - 1 && speedwell.model.frames[0].at")
    page.press("[", "[")
    assert page.value("speedwell.model.isLive") is False and "(\u2212" in page.text("#clock")
    page.value("""{ const time = document.querySelector('#time'); time.value = 0;
               time.dispatchEvent(new Event('input')); }""")
    assert page.value("speedwell.model.frame.at") == earliest
    page.press("l")
    assert page.value("speedwell.model.isLive")


def test_what_happened_while_the_page_had_no_connection_can_be_looked_at(url: str) -> None:
    with Cable(url) as cable, browser() as page:
        page.open("http://{}:{}/".format(*cable.server_address))
        page.until("speedwell.model.frames.length > 1")
        cable.pull_out()
        page.until("!speedwell.model.connected")
        cut = page.value("speedwell.model.frame.at")
        page.until(f"Date.now() / 1000 - {cut} > 12")
        cable.is_plugged = True
        page.until(f"speedwell.model.frame.at - {cut} > 12")
        page.until(f"speedwell.model.frames.some(({{ at }}) => at > {cut} + 1 && at < {cut} + 11)")
        told = page.value("speedwell.model.frames.map((frame) => frame.at)")
        assert told == sorted(set(told)) and max(after - at for at, after in pairwise(told)) < 9
        cable.shutdown()


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_follows_light_and_dark(page: Browser, dark: bool) -> None:
    page.show(360, 740, dark=dark, phone=True)
    for number in range(1, len(VIEWS) + 1):
        page.press(str(number))
        assert page.value("document.documentElement.scrollWidth") <= 360
    ground = page.value("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is not dark
    assert page.value("document.querySelector('#picture').clientHeight") >= 260


def test_a_controller_with_an_identity_asks_for_a_token_once(tmp_path: Path) -> None:
    identities.prepare(tmp_path, [(CONTROLLER, CONTROLLER)], "127.0.0.1")
    with (controller_process("--identity", str(tmp_path / identities.FOLDER / CONTROLLER)) as controller,
          browser() as page):
        page.ask("Security.setIgnoreCertificateErrors", ignore=True)
        page.open("https://{}:{}/".format(*controller.rest))
        page.until("document.querySelector('#login').open")
        assert page.value("speedwell.model.frame") is None

        def log_in(token: str) -> None:
            page.value(f"document.querySelector('#login input').value = '{token}'")
            page.value("document.querySelector('#login button').click()")

        log_in("wrong")
        page.until("document.querySelector('#login-problem').innerText.includes('speedwell identity token')")
        log_in((tmp_path / identities.FOLDER / "tokens/reader").read_text().strip())
        page.until("document.querySelector('#status').innerText === 'empty'")
        assert not page.value("document.querySelector('#login').open")
        assert page.value("document.cookie") == ""
        page.open("https://{}:{}/".format(*controller.rest))
        page.until("document.querySelector('#status').innerText === 'empty'")
        assert bearer.revoke(tmp_path / identities.FOLDER, "reader")
        wait_until(lambda: page.value("fetch('/v1/health').then((answer) => answer.status)") == 401, 20,
                   "the token is still good")


def test_ten_viewers_are_told_the_same_frames_and_are_forgotten_when_they_go(url: str) -> None:
    """Each frame has the time to a millisecond at which it was composed: those of one for all are the same."""
    with contextlib.ExitStack() as stack:
        answers = [stack.enter_context(urllib.request.urlopen(f"{url}v1/events", timeout=20)) for _ in range(10)]
        assert {answer.headers["Content-Type"] for answer in answers} == {"text/event-stream"}
        frames = [[_next_frame(answer) for _ in range(4)] for answer in answers]
    common = max(told[0]["at"] for told in frames), min(told[-1]["at"] for told in frames)
    heard = [[frame for frame in told if common[0] <= frame["at"] <= common[1]] for told in frames]
    assert len(heard[0]) >= 2 and all(told == heard[0] for told in heard)
    wait_until(lambda: b"speedwell_page_viewers 0.0" in urllib.request.urlopen(f"{url}metrics", timeout=20).read(),
               30, "those who left are counted")


def _next_frame(answer: HTTPResponse) -> dict[str, Any]:
    while answer.readline() != b"event: frame\n":
        pass
    frame: dict[str, Any] = json.loads(answer.readline().removeprefix(b"data: "))
    return frame


def test_a_link_has_the_flows_of_all_coflows_and_a_coflow_all_of_its_own() -> None:
    with controller_of(three_tier(1, 2, 11, host_bps=1e9), 0, coflows=450) as (url, _), browser() as page:
        page.open(url)
        page.until("speedwell.model.frame?.coflows?.total === 450 && speedwell.model.fabric")
        flows = [flow for offset in (0, 500) for flow in requests.get(
            f"{url}v1/coflow-flows?limit=500&offset={offset}", timeout=30).json()["flows"]]
        [(ends, _)] = Counter(tuple(sorted(way)) for flow in flows for way in pairwise(flow["path"])).most_common(1)
        link = f"{url}v1/coflow-flows?limit=500&link={','.join(ends)}"
        over = requests.get(link, timeout=30).json()
        assert over["total"] == len([flow for flow in flows if any(
            {*way} == {*ends} for way in pairwise(flow["path"]))]) > 100, "more than one page"
        pick_link(page, ends)
        rows = "document.querySelectorAll('#detail tr[data-key]').length"
        page.until(f"{rows} >= 100")
        while page.value("document.querySelector('#detail p button') !== null"):
            page.value("{ const more = document.querySelector('#detail p button'); more.click(); more.click(); }")
            page.until("document.querySelector('#detail p button') === null || "
                       f"{rows} > {page.value(rows)}")
        told = page.value("[...document.querySelectorAll('#detail tr[data-key]')].map((row) => row.dataset.key)")
        assert {f"{flow['coflow']}/{flow['number']}" for flow in over["flows"]} <= {*told}
        assert len(told) == len({*told}) and "are followed here" not in page.text("#detail")
        page.value("speedwell.model.found.flows = []; speedwell.draw()")
        told = page.text("#detail")     # of a link over which nothing went when it was picked
        assert "as they were when the link was chosen" in told and "No transfer" not in told
        last = page.value("(() => { const { id } = speedwell.model.frame.coflows.coflows.at(-1); "
                          "speedwell.pick({ kind: 'flow', flow: `${id}/` }); return id; })()")
        page.until("document.querySelectorAll('#detail tbody tr').length === 1")
        assert page.text("#detail h2").startswith(f"Coflow {last[-8:]}")
        assert not page.problems


def test_a_link_forgets_what_ran_before_the_controller_was_started_again() -> None:
    fabric = three_tier(1, 2, 11, host_bps=1e9)
    with (controller_of(fabric, 130) as (old, _), controller_of(fabric, 0) as (new, _), Cable(old) as cable,
          browser() as page):
        page.open("http://{}:{}/".format(*cable.server_address))
        page.until("speedwell.model.frame?.reads?.total === 130")
        reads = requests.get(f"{old}v1/reads?limit=500", timeout=30).json()["reads"]
        pick_link(page, next(part["path"][:2] for part in reads[-1]["parts"] if part["path"]))
        left_out = f"document.querySelector('#detail tr[data-key^=\"{reads[-1]['id']}\"]')"
        page.until(f"{left_out} !== null")
        picked = page.value("JSON.stringify(speedwell.selection)")
        cable.controller = urllib.parse.urlsplit(new)
        cable.cut()
        page.until("speedwell.model.connected && speedwell.model.frame?.reads?.total === 0")
        if page.value("speedwell.selection === null"):      # the new controller has numbered its links otherwise
            page.value(f"speedwell.pick({picked})")
        page.until(f"{left_out} === null")
        assert page.value("document.querySelectorAll('#detail tr[data-key]').length") == 0
        cable.shutdown()


@requires_etcd
def test_the_page_of_a_controller_that_stands_by_names_the_one_that_leads(tmp_path: Path) -> None:
    ports = free_ports(4)
    with contextlib.ExitStack() as stack:
        [etcd] = stack.enter_context(EtcdCluster(tmp_path)).endpoints
        leading, standby = (stack.enter_context(controller_process(
            "--insecure", "--etcd", etcd, "--openflow-port", str(openflow), "--rest-port", str(rest)))
            for openflow, rest in (ports[:2], ports[2:]))
        wait_until(lambda: {each.get("/v1/health")["status"] for each in (leading, standby)} > {"standby"}, 20,
                   "nobody leads")
        if leading.get("/v1/health")["status"] == "standby":
            leading, standby = standby, leading
        page = stack.enter_context(browser())
        page.open("http://{}:{}/".format(*standby.rest))
        leader = "http://{}:{}".format(*leading.rest)
        page.until(f"document.querySelector('#status').innerText === 'standing by: open {leader}'")
        leading.process.kill()
        page.until("speedwell.model.connected", 30)
        page.until("document.querySelector('#status').innerText === 'empty'")
