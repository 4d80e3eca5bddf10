"""The program that hands requests on to the processes of the hosts, with small programs as these."""

import sys

import pytest

from speedwell.evaluation.replay.agents import ReaderAgents, ReadingFailed
from tests.waiting import wait_until

ANSWERS = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if request["path"] == "/end":
        sys.exit(3)
    answer = {"id": request["id"], "started": 1.0, "finished": 2.0, "bytes": request["size_bytes"],
              "sources": [sys.argv[1]], "steered": request.get("steered", False)}
    sys.stdout.write(json.dumps(answer) + "\\n")      # at once: the others write to the same pipe
    sys.stdout.flush()
"""


@pytest.fixture
def agents(tmp_path):
    commands = {name: [sys.executable, "-c", ANSWERS, name] for name in ("a", "b")}
    commands["touches"] = ["sh", "-c", f"touch {tmp_path / 'started'}; exec cat > /dev/null"]
    agents = ReaderAgents([sys.executable, "-m", "speedwell.evaluation.hdfs.hosts"], {"commands": commands},
                          tmp_path / "log")
    yield agents
    agents.close()


def test_every_host_answers_for_itself(agents):
    reports = {host: agents.read(host, "/f", 7, steered=host == "b") for host in ("a", "b")}
    for host, report in reports.items():
        assert report.result(20).sources == (host,)
        assert report.result(20).size_bytes == 7
        assert report.result(20).steered == (host == "b")


def test_a_host_starts_with_its_first_request_only(agents, tmp_path):
    assert agents.read("a", "/f", 1).result(20)
    assert not (tmp_path / "started").exists()
    agents.read("touches", "/f", 1)
    wait_until((tmp_path / "started").exists, 20, "the host has not started")


def test_when_one_host_ends_all_reads_fail_and_the_host_is_named(agents):
    other = agents.read("touches", "/f", 1)
    ended = agents.read("a", "/end", 1)
    for report in (other, ended):
        with pytest.raises(ReadingFailed, match=r"(?s)the Java process of a has ended \(3\)"):
            report.result(20)
