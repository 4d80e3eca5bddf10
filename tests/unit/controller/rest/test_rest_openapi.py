"""The OpenAPI document is true: every route is driven, and what goes in and comes out is held against it."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import openapi_spec_validator
import pytest
from webob import Response

from speedwell.coflow.report import Flow, FlowReport
from speedwell.controller.errors import (
    ControllerError,
    NoSuchPath,
    SwitchGone,
    SwitchRefused,
    SwitchTimedOut,
)
from speedwell.controller.policy.registry import POLICIES, Kind
from tests.unit.controller.in_process import AGGREGATIONS, EDGES, HOSTS, Controller, read_of


class Described:
    """A controller whose every answer is checked against its own document."""

    def __init__(self, directory: Path) -> None:
        key_file = directory / "key"
        key_file.write_bytes(b"k" * 32)
        self.controller = Controller(coflow_key_file=key_file)
        self.document: dict[str, Any] = json.loads(self.controller.ask("GET", "/openapi.json").body)
        self.seen: set[tuple[str, str, str]] = set()

    def operation(self, method: str, path: str) -> dict[str, Any]:
        return self.document["paths"][path][method.lower()]

    def is_valid(self, schema: dict[str, Any], instance: object) -> bool:
        whole = {**schema, "components": self.document["components"]}
        validator = jsonschema.Draft202012Validator(whole, format_checker=jsonschema.FormatChecker(["ipv4"]))
        return validator.is_valid(instance)

    def ask(self, method: str, path: str, body: Any = None, url: str | None = None, **more: str) -> Response:
        """Ask and check. `path` is the documented one, `url` the same with its parameters filled in."""
        answer = self.controller.ask(method, url or path, body, **more)
        operation = self.operation(method, path)
        status = str(answer.status_int)
        assert status in operation["responses"], f"{method} {path} answered {status}, which is not documented"
        response = operation["responses"][status]
        self.seen.add((method, path, status))
        if "content" not in response:
            assert answer.body == b"" and answer.content_type is None
            return answer
        media_types = list(response["content"])
        assert answer.headers["Content-Type"] in media_types
        if "json" in answer.content_type:
            schema = response["content"][media_types[0]]["schema"]
            assert self.is_valid(schema, json.loads(answer.body)), f"{status} {answer.body.decode()}"
        for name in response.get("headers", ()):
            assert name in answer.headers
        if isinstance(body, dict):
            fits = self.is_valid(operation["requestBody"]["content"]["application/json"]["schema"], body)
            if status.startswith("2"):
                assert fits, f"accepted, but the document does not allow it: {body}"
            if not fits:
                assert status == "422", f"the document does not allow it, but it was not refused: {body}"
        return answer


@pytest.fixture
def described(tmp_path: Path) -> Described:
    return Described(tmp_path)


def test_document_is_valid_openapi_3_1(described: Described) -> None:
    openapi_spec_validator.validate(described.document)
    assert described.document["openapi"].startswith("3.1")


def test_the_root_leads_to_every_endpoint(described: Described) -> None:
    body = described.ask("GET", "/").body
    index = json.loads(body)
    listed = {endpoint["href"]: {method.lower() for method in endpoint["methods"]} for endpoint in index["endpoints"]}
    assert listed == {path: set(operations) for path, operations in described.document["paths"].items()}
    assert described.controller.ask("GET", index["description"]).status_int == 200
    assert len(body.splitlines()) > len(listed), "a person reads it a line for each endpoint at least"


def test_every_route_answers_as_documented(described: Described) -> None:
    read = json.loads(described.ask("POST", "/v1/reads", read_of()).body)
    described.ask("GET", "/v1/reads/{id}", url=f"/v1/reads/{read['id']}")
    for query in ("?after=0", "?after=3&wait_seconds=0", "?after=-1", "?after=0&wait_seconds=11"):
        described.ask("GET", "/v1/reads/{id}", url=f"/v1/reads/{read['id']}{query}")
    names = {parameter["name"]: parameter["in"] for parameter in described.operation(
        "GET", "/v1/reads/{id}")["parameters"]}
    assert names == {"id": "path", "after": "query", "wait_seconds": "query"}
    for path, operations in described.document["paths"].items():
        if "{" not in path and "get" in operations:
            described.ask("GET", path)
            described.ask("GET", path, url=f"{path}?x=1")
    for path in ("/v1/switches/{dpid}", "/v1.0/topology/switches/{dpid}", "/v1.0/topology/links/{dpid}",
                 "/v1.0/topology/hosts/{dpid}"):
        for given in (EDGES[0], "1", "0x1", "99", "zz", "18446744073709551616"):
            described.ask("GET", path, url=path.format(dpid=given))
    described.ask("GET", "/v1/reads/{id}", url=f"/v1/reads/{'x' * 65}")
    part = "/v1/reads/{id}/parts/{number}"
    for unknown in (f"/v1/reads/{read['id']}/parts/1", "/v1/reads/x/parts/0", f"/v1/reads/{read['id']}/parts/x",
                    f"/v1/reads/{read['id']}/parts/-1"):
        assert described.ask("DELETE", part, url=unknown).status_int in (404, 422)
    assert described.ask("DELETE", part, url=f"/v1/reads/{read['id']}/parts/0").status_int == 204
    assert described.ask("GET", "/v1/reads/{id}", url=f"/v1/reads/{read['id']}").status_int == 404
    read = json.loads(described.ask("POST", "/v1/reads", read_of()).body)
    described.ask("DELETE", "/v1/reads/{id}", url=f"/v1/reads/{read['id']}")
    described.ask("DELETE", "/v1/reads/{id}", url=f"/v1/reads/{read['id']}")
    described.ask("GET", "/v1/reads/{id}", url=f"/v1/reads/{read['id']}")
    wanted = {"files": [{"writer": "10.0.0.1", "size_bytes": 10_000_000, "replicas": 2}],
              "candidates": [{"host": host} for host in HOSTS]}
    placement, = json.loads(described.ask("POST", "/v1/placements", wanted).body)["placements"]
    described.ask("GET", "/v1/placements")
    for expected_status in (204, 404):
        assert described.ask("DELETE", "/v1/placements/{id}",
                             url=f"/v1/placements/{placement['id']}").status_int == expected_status
    coflow_id = b"c" * 16
    flow = Flow("10.0.0.1", "10.0.1.1", 7100, 40000)
    described.controller.coflows.book.report(coflow_id, [FlowReport(flow, 50_000_000)], 0.0)
    described.controller.coflows.plan()
    described.ask("GET", "/v1/coflows")
    described.ask("GET", "/v1/meters")
    coflow = "/v1/coflows/{id}"
    for unknown in ("x", "0" * 32, "0" * 33):
        assert described.ask("GET", coflow, url=f"/v1/coflows/{unknown}").status_int in (404, 422)
        assert described.ask("DELETE", coflow, url=f"/v1/coflows/{unknown}").status_int in (404, 422)
    assert described.ask("GET", coflow, url=f"/v1/coflows/{coflow_id.hex()}").json["state"] == "scheduled"
    assert described.ask("DELETE", coflow, url=f"/v1/coflows/{coflow_id.hex()}").status_int == 204
    refused = described.ask("GET", coflow, url=f"/v1/coflows/{coflow_id.hex()}").json
    assert refused["state"] == "refused" and [flow["state"] for flow in refused["members"]] == ["default"]
    driven = {(method, path) for method, path, status in described.seen if status.startswith("2")}
    documented = {(method.upper(), path) for path, operations in described.document["paths"].items()
                  for method in operations}
    assert driven == documented


@pytest.mark.parametrize(("failure", "status"), [
    (SwitchRefused(EDGES[0], "OFPET_FLOW_MOD_FAILED(5)", "OFPFMFC_TABLE_FULL(1)"), 502),
    (SwitchTimedOut(EDGES[0], 2.0), 504),
    (SwitchGone(EDGES[0]), 503),
])
def test_switch_failures_answer_as_documented(described: Described, failure: ControllerError, status: int) -> None:
    described.controller.tables.failures = [failure]
    answer = described.ask("POST", "/v1/reads", read_of())
    assert answer.status_int == status
    assert json.loads(answer.body)["dpid"] == EDGES[0]


def test_refusal_carries_the_openflow_error(described: Described) -> None:
    described.controller.tables.failures = [SwitchRefused(EDGES[0], "OFPET_FLOW_MOD_FAILED(5)", "TABLE_FULL(1)")]
    problem = json.loads(described.ask("POST", "/v1/reads", read_of()).body)
    assert problem["openflow_type"] == "OFPET_FLOW_MOD_FAILED(5)"
    assert problem["openflow_code"] == "TABLE_FULL(1)"


def test_failed_removal_answers_as_documented(described: Described) -> None:
    for failure in (SwitchRefused(EDGES[0], "a", "b"), SwitchTimedOut(EDGES[0], 2.0)):
        read = json.loads(described.ask("POST", "/v1/reads", read_of()).body)
        described.controller.tables.failures = [failure]
        answer = described.ask("DELETE", "/v1/reads/{id}", url=f"/v1/reads/{read['id']}")
        assert answer.status_int == failure.status


def test_other_refusals_of_a_read_answer_as_documented(described: Described) -> None:
    assert described.ask("POST", "/v1/reads", read_of(client="10.9.9.9")).status_int == 404
    assert described.ask("POST", "/v1/reads", b"{").status_int == 400
    assert described.ask("GET", "/v1/reads", url="/v1/reads?link=%ff").status_int == 400
    assert described.ask("POST", "/v1/reads", b"{}", content_type="text/plain").status_int == 415
    assert described.ask("POST", "/v1/reads", b" " * 300_000).status_int == 413
    for dpid in AGGREGATIONS:
        described.controller.state.switch_disconnected(dpid)
    assert described.ask("POST", "/v1/reads", read_of()).status_int == NoSuchPath.status


def test_unforeseen_failure_answers_as_documented(described: Described, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(described.controller.state), "name_of", fail)
    assert described.ask("GET", "/v1/network").status_int == 500
    assert described.ask("POST", "/v1/reads", read_of()).status_int == 500


REPLICA = {"host": "10.0.0.1", "port": 7000}
BAD_READS = {
    "client": [None, "", "10.0.0", "10.0.0.1/24", "::1", "10.0.0.1 ", 1, "127.0.0.1", "0.0.0.0", "p0r0h0"],
    "client_ports": [[], None, 40000, [0], [-1], [65536], ["40000"], [True], [1.5], [1, 1], list(range(1, 100))],
    "replicas": [[], None, {}, [None], [{}], [REPLICA] * 2, [{**REPLICA, "port": 0}], [{**REPLICA, "host": "x"}],
                 [{**REPLICA, "rack": 1}], [{"host": f"10.0.0.{number}", "port": 1} for number in range(1, 100)]],
    "size_bytes": [0, -1, 1 << 51, 10 ** 40, 1.5, "1", None, True],
    "file_id": ["", "x" * 256, 1, []],
    "replica_policy": ["", "fastest", "Mayflower", 1],
    "path_policy": ["", "nearest", "ECMP", 1],
    "follows": [None, 1, "yes"],
    "priority": [1],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BAD_READS.items()
                                              for value in values], ids=str)
def test_bad_read_is_refused_by_name_and_changes_nothing(described: Described, field: str, value: object) -> None:
    answer = described.ask("POST", "/v1/reads", read_of(**{field: value}))
    assert answer.status_int == 422
    assert json.loads(answer.body)["errors"][0]["field"].startswith(field)
    assert len(described.controller.reads) == 0
    assert described.controller.tables.entries == {}


@pytest.mark.parametrize("field", ["client", "client_ports", "replicas", "size_bytes"])
def test_missing_field_is_named(described: Described, field: str) -> None:
    body = read_of()
    del body[field]
    answer = described.ask("POST", "/v1/reads", body)
    assert (answer.status_int, json.loads(answer.body)["errors"][0]["field"]) == (422, field)


@pytest.mark.parametrize("changes", [
    {"file_id": None, "replica_policy": None, "path_policy": None}, {"file_id": "x" * 255}, {"size_bytes": 1},
    {"size_bytes": 1 << 50}, {"client_ports": [1, 65535]}, {"replicas": [REPLICA, {**REPLICA, "port": 7001}]},
    *({"replica_policy": policy} for policy in POLICIES.names(Kind.REPLICA)),
    {"replica_policy": "mayflower-plus", "path_policy": "mayflower", "follows": True},
    *({"path_policy": policy} for policy in ("mayflower", "ecmp")),
])
def test_what_the_document_allows_is_accepted(described: Described, changes: dict[str, Any]) -> None:
    assert described.ask("POST", "/v1/reads", read_of(**changes)).status_int == 201


def test_metrics_tell_what_happened(described: Described) -> None:
    described.ask("POST", "/v1/reads", read_of(path_policy="ecmp"))
    described.controller.tables.failures = [SwitchRefused(EDGES[0], "a", "b")]
    described.ask("POST", "/v1/reads", read_of(client_ports=[40001]))
    text = described.ask("GET", "/metrics").text
    assert 'speedwell_reads_total{path_policy="ecmp",replica_policy="mayflower"} 1.0' in text
    assert 'speedwell_installs_refused_total{problem="switch-refused"} 1.0' in text
    assert "speedwell_reads_in_flight 1.0" in text
    assert "speedwell_switches_connected 4.0" in text
    assert 'speedwell_http_requests_total{method="POST",route="/v1/reads",status="201"} 1.0' in text
    assert "speedwell_decision_seconds_count 2.0" in text
