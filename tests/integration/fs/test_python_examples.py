"""The Python examples of the documentation, run on a real installation."""

import doctest
from pathlib import Path

import pytest

from tests.local_cluster import LocalCluster

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("page", ["fsspec.md", "python-api.md"])
def test_the_examples_of_a_page_print_what_it_says(
        page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with LocalCluster(tmp_path / "cluster", dataservers=3) as cluster:
        monkeypatch.setenv("SPEEDWELL_NAMESERVER", cluster.nameserver.address)
        result = doctest.testfile(str(DOCS / page), module_relative=False, encoding="utf-8")
    assert result.attempted > 10
    assert result.failed == 0, "the examples that failed are in the output"
