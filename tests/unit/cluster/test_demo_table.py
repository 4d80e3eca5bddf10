"""What the demonstration's table says."""

from speedwell.cluster.demo import _table


def test_each_task_has_its_time_without_and_with_the_systems_and_the_ratio() -> None:
    names = ("write", "read", "small_files", "incast", "incast_ping", "congested_read")
    without = {f"{name}_seconds": 2.0 * number for number, name in enumerate(names, 1)}
    with_them = {f"{name}_seconds": 1.0 for name in names}
    rows = _table({"without": without, "with": with_them}).rows
    assert [row[1:] for row in rows] == [(f"{2 * number}", "1", f"{1 / (2 * number):.2f}") for number in range(1, 7)]
