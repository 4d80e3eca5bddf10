"""What was released as /v1 stays: routes, fields, statuses. What has to change comes as /v2."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.v1_contract import RELEASED, breaks, contract, document


@pytest.fixture(scope="module", name="served")
def _served() -> dict[str, Any]:
    return document()


def test_the_released_contract_holds(served: dict[str, Any]) -> None:
    released = RELEASED.read_text().splitlines()
    assert len(released) > 500
    assert breaks(released, contract(served)) == []


def _read(document: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = document["paths"]["/v1/reads"]["post"]
    return operation


def _schema(document: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    reference = content["application/json"]["schema"]["$ref"]
    schema: dict[str, Any] = document["components"]["schemas"][reference.rpartition("/")[2]]
    return schema


def _asked(document: dict[str, Any]) -> dict[str, Any]:
    return _schema(document, _read(document)["requestBody"]["content"])


def _answered(document: dict[str, Any]) -> dict[str, Any]:
    return _schema(document, _read(document)["responses"]["201"]["content"])


CHANGES = {
    "a route is gone": (lambda now: now["paths"].pop("/v1/reads"), "gone: POST /v1/reads 201"),
    "a status is gone": (lambda now: _read(now)["responses"].pop("404"), "gone: POST /v1/reads 404"),
    "a field that may be sent is gone": (
        lambda now: _asked(now)["properties"].pop("file_id"), "gone: POST /v1/reads takes file_id string"),
    "a field of the answer is gone": (
        lambda now: _answered(now)["properties"].pop("parts"), "gone: POST /v1/reads 201 gives parts array"),
    "a field of the answer may be missing": (
        lambda now: _answered(now)["required"].remove("id"), "gone: POST /v1/reads 201 always id"),
    "a field of the answer may be null": (
        lambda now: _answered(now)["properties"]["id"].update(type=["string", "null"]),
        "of another type now: POST /v1/reads 201 gives id null"),
    "a field must be sent": (
        lambda now: _asked(now)["required"].append("file_id"), "needed now: POST /v1/reads needs file_id"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_breaks_clients_is_found(served: dict[str, Any], change: str) -> None:
    now = copy.deepcopy(served)
    make, found = CHANGES[change]
    make(now)
    assert found in breaks(contract(served), contract(now))


def test_what_is_added_breaks_nobody(served: dict[str, Any]) -> None:
    now = copy.deepcopy(served)
    now["paths"]["/v1/more"] = now["paths"]["/v1/reads"]
    _asked(now)["properties"]["more"] = {"type": "string"}
    _answered(now)["properties"]["more"] = {"type": "string"}
    _answered(now)["required"].append("more")
    _read(now)["responses"]["418"] = {"description": "more"}
    assert breaks(contract(served), contract(now)) == []
