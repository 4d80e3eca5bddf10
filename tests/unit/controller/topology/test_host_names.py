"""What hosts are called, from a hosts file, and that every address in an answer has its name beside it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speedwell.coflow.report import Flow, FlowReport
from speedwell.controller.errors import InvalidSettings
from speedwell.controller.rest.fields import parse_dpid
from speedwell.controller.settings import load_settings
from speedwell.controller.topology.host_names import read_host_names
from speedwell.controller.topology.state import NetworkState
from tests.unit.controller.in_process import HOSTS, Controller, read_of

NAMES = {ip: f"server{number}" for number, ip in enumerate(sorted(HOSTS))}


def test_the_first_name_of_the_first_line_counts(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# made by hand\n10.0.0.1\tp0r0h0 www\n\n::1 localhost\n10.0.0.1 other # again\n"
                    "10.0.0.2 p0r0h1\n")
    assert read_host_names(file) == {"10.0.0.1": "p0r0h0", "10.0.0.2": "p0r0h1"}


@pytest.mark.parametrize(("text", "told"), [
    ("10.0.0.1 a\nnonsense here\n", "line 2 of"), ("10.0.0.1\n", "line 1 of"), ("10.0.0.300 a\n", "line 1 of")])
def test_what_is_no_hosts_file_is_refused_by_its_line(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=f"hosts_file.*{told}"):
        NetworkState(load_settings(hosts_file=file))


def test_a_missing_hosts_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"hosts_file.*missing: .*No such file"):
        NetworkState(load_settings(hosts_file=tmp_path / "missing"))


def addresses(document: Any, place: str = "") -> Iterator[tuple[str, str, Any]]:
    """(place, address, the object it stands in) of every host's address in an answer."""
    if isinstance(document, dict):
        for key, value in document.items():
            if isinstance(value, str) and value in HOSTS:
                yield f"{place}/{key}", value, document
            yield from addresses(value, f"{place}/{key}")
    elif isinstance(document, list):
        for value in document:
            yield from addresses(value, place)


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    hosts, key = tmp_path / "hosts", tmp_path / "key"
    hosts.write_text("".join(f"{ip} {name}\n" for ip, name in NAMES.items()))
    key.write_bytes(b"k" * 32)
    controller = Controller(hosts_file=hosts, coflow_key_file=key)
    flow = Flow("10.0.0.1", "10.0.1.1", 7100, 40000)
    controller.coflows.book.report(b"c" * 16, [FlowReport(flow, 50_000_000)], 0.0)
    controller.coflows.plan()
    return controller


def test_every_address_has_its_name_beside_it(controller: Controller) -> None:
    wanted = {"files": [{"writer": "10.0.0.1", "size_bytes": 10_000_000_000, "replicas": 2}],
              "candidates": [{"host": host} for host in HOSTS]}
    answers = {"POST /v1/reads": controller.ask("POST", "/v1/reads", read_of()),
               "POST /v1/placements": controller.ask("POST", "/v1/placements", wanted)}
    urls = [endpoint["href"] for endpoint in json.loads(controller.ask("GET", "/").body)["endpoints"]
            if "GET" in endpoint["methods"] and endpoint["href"].startswith("/v1/")]
    urls = [url.replace("{dpid}", parse_dpid("1")).replace(
        "/coflows/{id}", f"/coflows/{(b'c' * 16).hex()}") for url in urls if "/reads/{id}" not in url]
    answers |= {url: controller.ask("GET", url) for url in urls}
    seen = set()
    for asked, answer in answers.items():
        assert answer.status_int in (200, 201), (asked, answer.text)
        for place, address, beside in addresses(json.loads(answer.body)):
            key = place.rpartition("/")[2]
            name = beside["name"] if key == "ip" else beside[f"{key}_name"]
            assert name == NAMES[address], (asked, place)
            seen.add((asked, key))
    assert {("/v1/hosts", "ip"), ("/v1/links", "source"), ("/v1/flows", "destination"), ("/v1/reads", "client"),
            ("/v1/reads", "host"), ("/v1/placements", "writer"), ("POST /v1/placements", "host"),
            (f"/v1/coflows/{(b'c' * 16).hex()}", "source"), ("POST /v1/reads", "host")} <= seen


def test_lists_of_addresses_have_lists_of_names(controller: Controller) -> None:
    read = json.loads(controller.ask("POST", "/v1/reads", read_of()).body)
    path, names = read["parts"][0]["path"], read["parts"][0]["path_names"]
    assert (names[0], names[-1]) == (NAMES[path[0]], NAMES[path[-1]])
    wanted = {"files": [{"writer": "10.0.0.1", "size_bytes": 10_000_000_000, "replicas": 2}],
              "candidates": [{"host": host} for host in HOSTS]}
    placed, = json.loads(controller.ask("POST", "/v1/placements", wanted).body)["placements"]
    passed_over = placed["passed_over"]
    assert passed_over and placed["passed_over_names"] == {host: NAMES[host] for host in passed_over}
    expected, = json.loads(controller.ask("GET", "/v1/placements").body)["placements"]
    assert expected["destination_names"] == [NAMES[host] for host in expected["destinations"]]


def test_without_a_hosts_file_the_address_is_the_name() -> None:
    hosts = json.loads(Controller().ask("GET", "/v1/hosts").body)["hosts"]
    assert [host["name"] for host in hosts] == [host["ip"] for host in hosts]


def test_a_file_that_cannot_be_read_is_named_in_words_of_the_systems(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, why in (("none", "No such file or directory$"), ("binary", "is no text in UTF-8$")):
        with pytest.raises(InvalidSettings, match=rf"^setting 'hosts_file': .*{name}.* {why}"):
            read_host_names(tmp_path / name)
