"""The example in Go works in an installation with identity, with nothing of ours but the protocols."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.fs.identity.roles import MOUNT
from tests.local_cluster import LocalCluster

EXAMPLE = Path(__file__).parents[3] / "examples" / "go"
FETCH_SECONDS = 120
UNREACHABLE = re.compile(r"dial tcp|i/o timeout|TLS handshake|x509|EOF|connection reset|: (?:403|407|5\d\d) ")
"""What `go` says of a proxy that it does not reach or that does not serve it; a module that is not there is 404."""

DATA = os.urandom(5_000_000)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def program() -> Path:
    needed = re.search(r"^go (\d+)\.(\d+)", (EXAMPLE / "go.mod").read_text(), re.MULTILINE)
    if shutil.which("go") is None or not needed or installed_go() < tuple(map(int, needed.groups())):
        pytest.skip("no Go that the example takes is installed (go.dev/dl; Debian 12's is too old)")
    try:
        fetched = subprocess.run(["go", "mod", "download"], cwd=EXAMPLE, capture_output=True, text=True, check=False,
                                 timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"no proxy of Go modules has sent them within {FETCH_SECONDS} s")
    if UNREACHABLE.search(fetched.stderr):
        pytest.skip(f"no proxy of Go modules is reachable: {fetched.stderr.splitlines()[-1]}")
    assert fetched.returncode == 0, fetched.stderr
    subprocess.run(["./build"], cwd=EXAMPLE, check=True,
                   env={**os.environ, "PROTOC": f"{sys.executable} -m grpc_tools.protoc"})
    return EXAMPLE / "bin" / "speedwell"


@pytest.fixture(scope="module")
def cluster(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=3, secure=True) as cluster:
        yield cluster


def installed_go() -> tuple[int, ...]:
    """Its version. Asked outside of the module: there it might fetch another."""
    said = subprocess.run(["go", "env", "GOVERSION"], cwd="/", capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.findall(r"\d+", said)[:2]))


def run(program: Path, cluster: LocalCluster, action: str, path: str, data: bytes = b"",
        role: str = MOUNT) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([program, cluster.nameserver.address, cluster.identity(role), action, path], input=data,
                          capture_output=True, timeout=60, check=False)


def test_what_it_writes_is_on_all_replicas_and_it_reads_what_others_wrote(program: Path,
                                                                          cluster: LocalCluster) -> None:
    written = run(program, cluster, "write", "/from-go", DATA)
    assert written.returncode == 0, written.stderr
    client = cluster.client()
    with client.open_read("/from-go") as file:
        assert file.read(0, len(DATA) + 1) == DATA
    file_id = client.lookup("/from-go").file_id
    assert [cluster.stored_bytes(name, file_id) for name in ("d0", "d1", "d2")] == [DATA] * 3
    client.create("/to-go")
    client.append("/to-go", DATA[::-1])
    assert run(program, cluster, "read", "/to-go").stdout == DATA[::-1]
    listed = run(program, cluster, "list", "/")
    assert listed.stdout == b"%d from-go\n%d to-go\n" % (len(DATA), len(DATA)), listed.stderr


def test_it_reads_from_another_replica_where_one_is_damaged_or_gone(program: Path, cluster: LocalCluster) -> None:
    client = cluster.client()
    client.create("/damaged", replicas=["d0", "d1", "d2"])
    client.append("/damaged", DATA)
    chunk = cluster.stored("d0", client.lookup("/damaged").file_id) / "1"
    with chunk.open("r+b") as file:
        file.seek(100_000)
        file.write(b"changed")
    cluster.dataserver("d1").kill()
    read = run(program, cluster, "read", "/damaged")
    cluster.revive()
    assert read.stdout == DATA, read.stderr


def test_a_reader_is_refused_a_write_in_words(program: Path, cluster: LocalCluster) -> None:
    refused = run(program, cluster, "write", "/by-reader", DATA, role="reader")
    assert refused.returncode == 1
    assert b"PermissionDenied" in refused.stderr
    assert b"NotFound" in run(program, cluster, "read", "/by-reader").stderr
