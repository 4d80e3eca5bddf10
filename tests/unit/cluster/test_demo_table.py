"""What the demonstration's table says of a read."""

from speedwell.cluster.demo import _table


def test_a_read_in_parts_has_a_row_with_path_and_share_for_each_replica() -> None:
    sources = [{"replica": "a", "bytes": 750, "path": ["a", "s1", "s3", "c"]},
               {"replica": "b", "bytes": 250, "path": ["b", "s2", "s3", "c"]}]
    results = [{"policy": "mayflower+mayflower", "reader": "c", "bytes": 1000, "seconds": 2.0, "ratio": 0.5,
                "sources": sources}]
    assert _table(results).rows == [
        ("mayflower + mayflower", "a", "a → s1 → s3 → c", "75%", "2.00", "0.00", "0.50"),
        ("mayflower + mayflower", "b", "b → s2 → s3 → c", "25%", "", "", "")]
