"""A client that a generator makes from the OpenAPI document talks to a real controller."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest

from speedwell.cluster import identities
from speedwell.fs.identity import bearer
from speedwell.fs.identity.files import AUTHORITY, CERTIFICATE
from speedwell.fs.identity.roles import CONTROLLER, OPERATOR, READER
from speedwell.topo.fabric import Fabric, spine_leaf
from tests.unit.controller.controller_process import controller_process

sys.path.append(str(Path(__file__).parents[3] / "scripts"))
import bench_reads

FIND_SECONDS = 120.0


@pytest.fixture(scope="module", name="fabric")
def _fabric() -> Fabric:
    return spine_leaf(2, 2, 2)


@pytest.fixture(scope="module", name="url")
def _url(fabric: Fabric) -> Iterator[str]:
    """Of a controller with simulated switches, which knows all hosts."""
    with bench_reads.running(Path(__file__).parents[3], fabric, 0, 10) as controller:
        controller.find_hosts([host.ip for host in fabric.hosts], FIND_SECONDS)
        yield "http://{}:{}".format(*controller.address)


@pytest.fixture(scope="module", name="client")
def _client(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The package that the generator made."""
    place = tmp_path_factory.mktemp("generated")
    (place / "config.yml").write_text("post_hooks: []\n")
    subprocess.run([Path(sys.executable).with_name("openapi-python-client"), "generate", "--url",
                    f"{url}/openapi.json", "--meta", "none", "--output-path", "speedwell_client",
                    "--config", "config.yml"], cwd=place, check=True, timeout=120, capture_output=True)
    sys.path.insert(0, str(place))
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(sys.path.remove, str(place))
        yield "speedwell_client"
    for name in [name for name in sys.modules if name.partition(".")[0] == "speedwell_client"]:
        del sys.modules[name]


def test_it_places_a_read_lists_it_and_ends_it(client: str, url: str, fabric: Fabric) -> None:
    models, reads = import_module(f"{client}.models"), f"{client}.api.reads"
    post, get_all, get, delete = (import_module(f"{reads}.{name}") for name in (
        "post_v1_reads", "get_v1_reads", "get_v1_reads_id", "delete_v1_reads_id"))
    reader, source = fabric.hosts[0].ip, fabric.hosts[-1].ip
    with import_module(client).Client(base_url=url) as connection:
        placed = post.sync(client=connection, body=models.ReadBody(
            client=reader, client_ports=[40000], size_bytes=1 << 20,
            replicas=[models.ReplicaAddress(host=source, port=7100)]))
        assert isinstance(placed, models.PlacedRead)
        [part] = placed.parts
        assert (part.client_port, part.replica.host, part.path[0], part.path[-1]) == (40000, source, source, reader)
        assert [read.id for read in get_all.sync(client=connection).reads] == [placed.id]
        assert get.sync(placed.id, client=connection).parts[0].remaining_bytes == 1 << 20
        assert delete.sync_detailed(placed.id, client=connection).status_code == 204
        assert get_all.sync(client=connection).reads == []


def test_it_tells_a_refusal_by_its_type(client: str, url: str) -> None:
    models, get = import_module(f"{client}.models"), import_module(f"{client}.api.reads.get_v1_reads_id")
    with import_module(client).Client(base_url=url) as connection:
        refused = get.sync("0" * 32, client=connection)
    assert isinstance(refused, models.ProblemDetails)
    assert (refused.status, refused.type_) == (404, "urn:speedwell:problem:unknown-read")


def test_it_reads_and_writes_over_tls_with_a_token_and_with_a_certificate(client: str, tmp_path: Path) -> None:
    """A token of the role operator, and the operator's own certificate; a reader may not write."""
    identities.prepare(tmp_path, [(CONTROLLER, CONTROLLER), (OPERATOR, OPERATOR)], "127.0.0.1")
    folder, generated = tmp_path / identities.FOLDER, import_module(client)
    models, turns = import_module(f"{client}.models"), f"{client}.api.timeslices"
    put, get = import_module(f"{turns}.put_v1_timeslices_turns"), import_module(f"{turns}.get_v1_timeslices_turns")
    with_certificate = ssl.create_default_context(cafile=str(folder / OPERATOR / AUTHORITY))
    with_certificate.load_cert_chain(folder / OPERATOR / CERTIFICATE)
    authority = ssl.create_default_context(cafile=str(folder / OPERATOR / AUTHORITY))

    def told(policy: str) -> Any:
        return models.TurnsReport(policy=policy, slice_seconds=0.02, agents=2, total=1, turns=[models.TurnReport(
            source="10.0.0.1", destination="10.0.1.1", queued_bytes=1, waited_seconds=0.5, rate_bps=0.0)])

    with controller_process("--identity", str(folder / CONTROLLER)) as controller:
        url = "https://{}:{}".format(*controller.rest)
        tokens = {role: generated.AuthenticatedClient(base_url=url, verify_ssl=authority, token=bearer.issue(
            folder, f"script-{role}", role).read_text().strip()) for role in (READER, OPERATOR)}
        with generated.Client(base_url=url, verify_ssl=with_certificate) as operator:
            assert put.sync_detailed(client=operator, body=told("xco")).status_code == 204
            assert get.sync(client=operator).policy == "xco"
        assert put.sync_detailed(client=tokens[OPERATOR], body=told("xco-plus")).status_code == 204
        [turn] = get.sync(client=tokens[READER]).turns
        assert (turn.source, turn.waited_seconds) == ("10.0.0.1", 0.5)
        refused = put.sync(client=tokens[READER], body=told("rate-limits"))
        assert isinstance(refused, models.ProblemDetails) and refused.status == 403
        assert get.sync(client=tokens[READER]).policy == "xco-plus"
        with pytest.raises(httpx.ConnectError), generated.Client(base_url=url) as stranger:
            get.sync(client=stranger)
