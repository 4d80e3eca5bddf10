"""Which commands take part in an emulated fabric, and which are refused."""

import json
import os
from pathlib import Path

import pytest

from speedwell.cluster import fabric_network
from speedwell.cluster.commands.connection import Target
from speedwell.cluster.errors import NotOnFabric

LOCAL, ELSEWHERE = "127.0.0.1:7000", "192.0.2.1:7000"


@pytest.fixture
def fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = tmp_path / "fabric.json"
    monkeypatch.setattr(fabric_network, "STATE_FILE", state)
    return state


def test_without_a_fabric_there_is_nothing_to_join(fabric: Path) -> None:
    assert fabric_network.join(LOCAL) == ""
    fabric.write_text("damaged")
    assert fabric_network.join(LOCAL) == ""


def test_another_installation_is_left_alone(fabric: Path) -> None:
    fabric.write_text(json.dumps({"nameserver": LOCAL, "environment": {}}))
    assert fabric_network.join("127.0.0.1:7999") == ""


def test_on_a_host_of_the_fabric_the_network_is_the_right_one(fabric: Path) -> None:
    fabric.write_text(json.dumps({"nameserver": ELSEWHERE, "environment": {}}))
    assert fabric_network.join(ELSEWHERE) == ""


def test_on_the_machine_without_a_place_on_the_fabric_no_byte_of_a_file_moves(fabric: Path) -> None:
    fabric.write_text(json.dumps({"nameserver": f"{LOCAL},{ELSEWHERE}", "environment": {}}))
    refusal = fabric_network.join(LOCAL)
    assert "not on the fabric of this installation" in refusal and "speedwell enter HOST" in refusal
    with pytest.raises(NotOnFabric, match="speedwell enter HOST"):
        Target(LOCAL, off_fabric=refusal).connect(for_bytes=True)
    Target(LOCAL, off_fabric=refusal).connect().close()


def test_a_machine_whose_place_is_gone_is_refused(fabric: Path) -> None:
    gone = os.getpid() + (1 << 23)
    machine = {"pid": gone, "ip": "10.0.0.9"}
    fabric.write_text(json.dumps({"nameserver": LOCAL, "environment": {}, "machine": machine}))
    assert "is gone: `speedwell up --installation DIR` starts the fabric again" in fabric_network.join(LOCAL)


def test_what_goes_to_a_host_of_the_fabric_goes_over_the_fabric(fabric: Path) -> None:
    hosts = {"alice": {"pid": 1, "ip": "10.0.0.1"}}
    fabric.write_text(json.dumps({"nameserver": LOCAL, "environment": {}, "hosts": hosts}))
    assert "not on the fabric" in fabric_network.join_toward("10.0.0.1")
    assert fabric_network.join_toward("10.0.0.2") == ""
    fabric.write_text(json.dumps({"nameserver": ELSEWHERE, "environment": {}, "hosts": hosts}))
    assert fabric_network.join_toward("10.0.0.1") == ""
