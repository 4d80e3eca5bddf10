"""The tables of an experiment."""

from pathlib import Path

from speedwell.evaluation.results.report import Layout, Measure, rows_of, tables_of, write_csv

LAYOUT = Layout(title="Times", x_label="x", claims=("a is best",), base="a",
                measures=(Measure("mean_seconds", "mean, s"), Measure("p95_seconds", "95th percentile, s")),
                bounds={"mean_seconds": "bound_seconds"})


def result(method: str, seed: int, mean: float, **more: object) -> dict:
    return {"task": {"point": "p", "x": 1.0, "seed": seed, "method": {"name": method}}, "mean_seconds": mean,
            "p95_seconds": 2 * mean, "bound_seconds": 1.0, **more}


def test_each_measure_is_a_table_of_its_own_without_columns_that_say_nothing() -> None:
    mean, p95 = tables_of(LAYOUT, rows_of([result("a", 1, 2.0), result("b", 1, 3.0)], LAYOUT))
    assert mean.columns == ("point", "method", "mean, s", "/ a", "lower bound, s", "/ lower bound")
    assert mean.rows == [("p", "a", "2.00", "1.00", "1.00", "2.00"), ("p", "b", "3.00", "1.50", "1.00", "3.00")]
    assert p95.columns == ("point", "method", "95th percentile, s", "/ a")
    assert mean.title == "Times: mean, s"
    assert mean.caption == "No interval: there are too few runs, or they differ too much.\nPaper: a is best"


def test_no_interval_is_infinite_or_below_zero(tmp_path: Path) -> None:
    rows = rows_of([result("a", 1, 0.1), result("a", 2, 9.0), result("b", 1, 9.0), result("b", 2, 0.2)], LAYOUT)
    shown = [cell for table in tables_of(LAYOUT, rows) for row in table.rows for cell in row]
    assert not [cell for cell in shown if "inf" in cell or "nan" in cell or "-" in cell], shown
    assert any("[0.00, " in cell for cell in shown)
    write_csv(rows, tmp_path / "table.csv", LAYOUT)
    text = (tmp_path / "table.csv").read_text()
    assert "inf" not in text and "nan" not in text and ",-" not in text


def test_an_overloaded_point_says_so_in_each_table() -> None:
    run = {"task": {"point": "p", "x": 1.0, "seed": 1, "method": {"name": "a"}}, "overloaded": "reads pile up"}
    for table in tables_of(LAYOUT, rows_of([run, result("b", 1, 3.0)], LAYOUT)):
        assert table.rows[0][:3] == ("p", "a", "overloaded in 1 of 1 runs")
