"""A client that a generator makes from the OpenAPI document talks to a real controller."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from speedwell.topo.fabric import Fabric, spine_leaf

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
