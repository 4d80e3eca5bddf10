"""`speedwell://` through fsspec: its own suite, and the libraries that people read Parquet with; real processes."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.tests import abstract

from speedwell.fs.client import Client
from speedwell.fs.fsspec import SpeedwellFileSystem
from tests.local_cluster import LocalCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def filesystem(cluster: LocalCluster) -> SpeedwellFileSystem:
    return fsspec.filesystem("speedwell", nameserver=cluster.nameserver.address)


@pytest.fixture
def url(cluster: LocalCluster, filesystem: SpeedwellFileSystem) -> Iterator[str]:
    filesystem.mkdir("/t")
    yield f"speedwell://{cluster.nameserver.address}/t"
    filesystem.rm("/t", recursive=True)


class Fixtures(abstract.AbstractFixtures):
    """What fsspec's suite is run on: it expects missing directories to be made."""

    @pytest.fixture
    def fs(self, cluster: LocalCluster) -> SpeedwellFileSystem:
        return SpeedwellFileSystem(cluster.nameserver.address, auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, fs: SpeedwellFileSystem) -> Iterator[str]:
        fs.mkdir("/suite")
        yield "/suite"
        fs.rm("/suite", recursive=True)


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


# ------------------------------------------------------------------ Parquet


def with_pandas(filesystem: SpeedwellFileSystem, url: str) -> int:
    import pandas

    pandas.DataFrame({"n": range(1000)}).to_parquet(f"{url}/pandas.parquet")
    return int(pandas.read_parquet(f"{url}/pandas.parquet", columns=["n"])["n"].sum())


def with_pyarrow(filesystem: SpeedwellFileSystem, url: str) -> int:
    import pyarrow
    from pyarrow import dataset, parquet

    table = pyarrow.table({"n": range(1000), "part": [number % 2 for number in range(1000)]})
    parquet.write_to_dataset(table, "/t/arrow", partition_cols=["part"], filesystem=filesystem)
    assert {path.rpartition("/")[2] for path in filesystem.ls("/t/arrow", detail=False)} == {"part=0", "part=1"}
    return sum(dataset.dataset("/t/arrow", filesystem=filesystem, partitioning="hive").to_table()["n"].to_pylist())


def with_duckdb(filesystem: SpeedwellFileSystem, url: str) -> int:
    import duckdb

    with duckdb.connect() as database:
        database.register_filesystem(filesystem)
        database.execute(f"copy (select range as n from range(1000)) to '{url}/duck.parquet' (format parquet)")
        found = database.execute(f"select sum(n) from read_parquet('{url}/*.parquet')").fetchone()
    assert found is not None
    return int(found[0])


def with_dask(filesystem: SpeedwellFileSystem, url: str) -> int:
    import dask
    import pandas
    from dask import dataframe

    with dask.config.set(scheduler="threads"):
        dataframe.from_pandas(pandas.DataFrame({"n": range(1000)}), npartitions=4).to_parquet(f"{url}/dask")
        assert len(filesystem.glob("/t/dask/*.parquet")) == 4
        return int(dataframe.read_parquet(f"{url}/dask")["n"].sum().compute())


@pytest.mark.parametrize("library", [with_pandas, with_pyarrow, with_duckdb, with_dask])
def test_a_library_writes_parquet_and_reads_it_back(
        library: Callable[[SpeedwellFileSystem, str], int], filesystem: SpeedwellFileSystem, url: str) -> None:
    assert library(filesystem, url) == sum(range(1000))


# ------------------------------------------------------------------ what the suite does not ask


def test_an_url_leads_to_its_nameserver_and_back(cluster: LocalCluster, url: str) -> None:
    filesystem, path = fsspec.core.url_to_fs(f"{url}/a//b/")
    assert (filesystem.nameserver, path) == (cluster.nameserver.address, "/t/a//b")
    assert filesystem.unstrip_protocol(path) == f"{url}/a//b"


def test_a_url_without_a_nameserver_takes_the_one_of_the_environment(
        cluster: LocalCluster, filesystem: SpeedwellFileSystem, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="SPEEDWELL_NAMESERVER"):
        fsspec.filesystem("speedwell", skip_instance_cache=True)
    with pytest.raises(OSError, match="HOST:PORT"):
        fsspec.filesystem("speedwell", nameserver="nowhere", skip_instance_cache=True)
    filesystem.pipe_file("/t/a", b"1")
    monkeypatch.setenv("SPEEDWELL_NAMESERVER", cluster.nameserver.address)
    with fsspec.open("speedwell:///t/a", skip_instance_cache=True) as file:
        assert file.read() == b"1"


def test_a_written_file_gets_its_name_when_it_is_closed(filesystem: SpeedwellFileSystem, url: str) -> None:
    filesystem.pipe_file("/t/a", b"old")
    with filesystem.open("/t/a", "wb", block_size=4096) as file:
        file.write(b"n" * 10000)
        assert filesystem.cat_file("/t/a") == b"old"
    assert filesystem.cat_file("/t/a") == b"n" * 10000
    assert filesystem.ls("/t", detail=False) == ["/t/a"]


def test_a_transaction_that_fails_leaves_nothing(filesystem: SpeedwellFileSystem, url: str) -> None:
    with pytest.raises(KeyError), filesystem.transaction:
        with filesystem.open("/t/a", "wb") as file:
            file.write(b"never")
        raise KeyError
    assert filesystem.ls("/t") == []
    with filesystem.transaction:
        with filesystem.open("/t/a", "wb") as file:
            file.write(b"at its end")
        assert not filesystem.exists("/t/a")
    assert filesystem.cat_file("/t/a") == b"at its end"


def test_the_slower_of_two_exclusive_writers_is_told(filesystem: SpeedwellFileSystem, url: str) -> None:
    slower = filesystem.open("/t/a", "xb")
    with filesystem.open("/t/a", "xb") as quicker:
        quicker.write(b"quicker")
    with pytest.raises(FileExistsError):
        slower.close()
    assert filesystem.cat_file("/t/a") == b"quicker"
    assert filesystem.ls("/t", detail=False) == ["/t/a"]


def test_appends_go_to_the_end(filesystem: SpeedwellFileSystem, url: str) -> None:
    for text in ("one\n", "two\n"):
        with filesystem.open("/t/log", "a") as file:
            file.write(text)
    with filesystem.open("/t/log", "ab") as file:
        assert file.tell() == 8
    with filesystem.open("/t/log", "rt") as file:
        assert file.readlines() == ["one\n", "two\n"]


def test_links_are_followed_by_reads_but_not_by_removal(
        cluster: LocalCluster, filesystem: SpeedwellFileSystem, url: str) -> None:
    client: Client = cluster.client()
    filesystem.mkdir("/t/real")
    filesystem.pipe_file("/t/real/file", b"kept")
    filesystem.mkdir("/t/other")
    client.metadata.posix.make_symbolic_link("/t/other/link", b"../real")
    client.metadata.posix.make_symbolic_link("/t/other/nowhere", b"missing")
    client.metadata.posix.make_symbolic_link("/t/other/circle", b"circle")
    client.metadata.posix.make_symbolic_link("/t/other/above", b"..")
    assert filesystem.cat_file("/t/other/link/file") == b"kept"
    assert filesystem.info("/t/other/link")["type"] == "directory"
    assert [filesystem.info(f"/t/other/{name}")["type"] for name in ("nowhere", "circle")] == ["link", "link"]
    assert filesystem.exists("/t/other/nowhere") and not filesystem.isfile("/t/other/nowhere")
    assert len(filesystem.find("/t/other", maxdepth=1)) == 2
    filesystem.mv("/t/other/link/file", "/t/other/link/moved")
    filesystem.rm("/t/other", recursive=True)
    assert filesystem.find("/t") == ["/t/real/moved"]


@pytest.mark.parametrize(("wrong", "error"), [
    (lambda filesystem: filesystem.open("/t/missing"), FileNotFoundError),
    (lambda filesystem: filesystem.open("/t/missing/file", "wb"), FileNotFoundError),
    (lambda filesystem: filesystem.open("/t", "wb"), IsADirectoryError),
    (lambda filesystem: filesystem.open("/t", "rb"), IsADirectoryError),
    (lambda filesystem: filesystem.mkdir("/t"), FileExistsError),
    (lambda filesystem: filesystem.ls("/t/missing"), FileNotFoundError),
    (lambda filesystem: filesystem.rm("/t"), IsADirectoryError),
    (lambda filesystem: filesystem.rmdir("/"), OSError),
    (lambda filesystem: filesystem.open("/t/../x"), OSError),
])
def test_errors_are_those_of_the_operating_system(
        filesystem: SpeedwellFileSystem, url: str, wrong: Callable[[SpeedwellFileSystem], Any],
        error: type[OSError]) -> None:
    with pytest.raises(error) as raised:
        wrong(filesystem)
    assert raised.value.errno


def test_another_process_gets_an_open_file_where_it_was(
        filesystem: SpeedwellFileSystem, url: str, tmp_path: Path) -> None:
    filesystem.pipe_file("/t/a", b"0123456789")
    file = filesystem.open("/t/a")
    file.seek(4)
    (tmp_path / "file").write_bytes(pickle.dumps(file))
    program = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).read())"
    told = subprocess.run([sys.executable, "-c", program, str(tmp_path / "file")], capture_output=True, text=True,
                          timeout=60, check=True, env=os.environ)
    assert told.stdout == "b'456789'\n"


def test_what_cannot_be_asked_is_not_taken_for_missing(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, dataservers=0) as cluster:
        filesystem = SpeedwellFileSystem(cluster.nameserver.address, skip_instance_cache=True)
        assert not filesystem.exists("/missing")
    questions = [filesystem.exists, filesystem.isdir, filesystem.isfile, filesystem.find, filesystem.glob]
    with ThreadPoolExecutor(len(questions)) as pool:
        answers = [pool.submit(question, "/missing") for question in questions]
        errors = [answer.exception(timeout=60) for answer in answers]
    assert [isinstance(error, OSError) and "nameserver" in str(error) for error in errors] == [True] * len(questions)


def test_touch_makes_empties_and_renews(filesystem: SpeedwellFileSystem, url: str) -> None:
    filesystem.touch("/t/a")
    filesystem.pipe_file("/t/a", b"content")
    before = filesystem.modified("/t/a")
    filesystem.touch("/t/a", truncate=False)
    assert filesystem.modified("/t/a") > before and filesystem.size("/t/a") == 7
    filesystem.touch("/t/a")
    assert filesystem.size("/t/a") == 0
