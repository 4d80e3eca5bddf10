"""What was released as /v1 stays: routes, fields, statuses. What has to change comes as /v2."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.v1_contract import ENUM, HIGHEST, LOWEST, RELEASED, breaks, contract, document


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


def _nodes(within: Any) -> Iterator[dict[str, Any]]:
    """All schemas of a document, and what else it is made of."""
    if isinstance(within, dict):
        yield within
    for each in within.values() if isinstance(within, dict) else within if isinstance(within, list) else ():
        yield from _nodes(each)


def _limited_otherwise(served: dict[str, Any], keyword: str, change: Callable[[dict[str, Any]], None]) -> set[str]:
    """What is found where every schema with a keyword is changed: the fields, as in the contract."""
    now = copy.deepcopy(served)
    for node in [node for node in _nodes([now["paths"], now["components"]]) if isinstance(node.get("title"), str)
                 or "type" in node]:
        if keyword in node:
            change(node)
    found = breaks(contract(served), contract(now))
    assert all(line.startswith("limited otherwise now: ") for line in found)
    return {line.removeprefix("limited otherwise now: ").partition(f" {keyword} ")[0] for line in found}


def _fields_with(served: dict[str, Any], keyword: str, word: str) -> set[str]:
    return {line.partition(f" {keyword} ")[0] for line in contract(served) if word in line and f" {keyword} " in line}


def _by(keyword: str, step: int) -> Callable[[dict[str, Any]], None]:
    return lambda node: node.update({keyword: node[keyword] + step})


def _all_by(at_lowest: int, at_highest: int) -> dict[str, Callable[[dict[str, Any]], None]]:
    return {**{keyword: _by(keyword, at_lowest) for keyword in sorted(LOWEST)},
            **{keyword: _by(keyword, at_highest) for keyword in sorted(HIGHEST)}}


TIGHTER = {**_all_by(1, -1), ENUM: lambda node: node[ENUM].pop(),
           "default": lambda node: node.update(default="another")}
LOOSER = {**_all_by(-1, 1), ENUM: lambda node: node[ENUM].append("another"),
          "pattern": lambda node: node.pop("pattern"), "format": lambda node: node.pop("format"),
          "uniqueItems": lambda node: node.pop("uniqueItems")}


@pytest.mark.parametrize("keyword", TIGHTER)
def test_what_may_be_sent_cannot_be_limited_more(served: dict[str, Any], keyword: str) -> None:
    assert _limited_otherwise(served, keyword, TIGHTER[keyword]) == _fields_with(served, keyword, " takes ")


@pytest.mark.parametrize("keyword", LOOSER)
def test_what_answers_have_cannot_be_limited_less(served: dict[str, Any], keyword: str) -> None:
    assert _limited_otherwise(served, keyword, LOOSER[keyword]) == _fields_with(served, keyword, " gives ")


@pytest.mark.parametrize("keyword", ["pattern", "format"])
def test_a_pattern_and_a_format_stay_as_they_are(served: dict[str, Any], keyword: str) -> None:
    assert _limited_otherwise(served, keyword, lambda node: node.update({keyword: "another"})) \
        == _fields_with(served, keyword, " takes ") | _fields_with(served, keyword, " gives ")


@pytest.mark.parametrize(("keyword", "value"), [
    ("minimum", 2), ("maximum", 2), ("pattern", "a"), ("enum", ["a"]), ("maxLength", 2), ("maxItems", 2)])
def test_what_had_no_limit_gets_none(served: dict[str, Any], keyword: str, value: Any) -> None:
    before = copy.deepcopy(served)
    _asked(before)["properties"]["size_bytes"].pop(keyword, None)
    now = copy.deepcopy(before)
    _asked(now)["properties"]["size_bytes"][keyword] = value
    [found] = breaks(contract(before), contract(now))
    assert found.startswith(f"limited otherwise now: POST /v1/reads takes size_bytes integer {keyword} none -> ")


def test_an_object_that_took_other_fields_goes_on_taking_them(served: dict[str, Any]) -> None:
    before = copy.deepcopy(served)
    _asked(before).pop("additionalProperties")
    assert breaks(contract(before), contract(served)) == [
        "limited otherwise now: POST /v1/reads takes . object closed none -> true"]


def test_limits_are_in_the_contract(served: dict[str, Any]) -> None:
    keywords = ("minimum", "maximum", "pattern", "enum", "maxLength", "maxItems", "default")
    assert min(len(_fields_with(served, keyword, " takes ")) for keyword in keywords) >= 2


def test_what_is_added_breaks_nobody(served: dict[str, Any]) -> None:
    now = copy.deepcopy(served)
    now["paths"]["/v1/more"] = now["paths"]["/v1/reads"]
    _asked(now)["properties"]["more"] = {"type": "string"}
    _answered(now)["properties"]["more"] = {"type": "string"}
    _answered(now)["required"].append("more")
    _read(now)["responses"]["418"] = {"description": "more"}
    assert breaks(contract(served), contract(now)) == []
