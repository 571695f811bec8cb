"""Tables in a terminal, in Markdown and in JSON."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from vitshap.experiments.tables import NOT_RUN, Cell, Column, Table, write_tables


@pytest.fixture
def table() -> Table:
    columns = (Column("method"), Column("time", ",.1f", "ms"), Column("insertion_area", ".3f"))
    made = Table("all methods", columns, notes=["means over 100 images"])
    made.add(method="kernelshap", time=1234.56, insertion_area=Cell(0.9123, error=0.0041))
    made.add(method="a | b", time=0.02, insertion_area=Cell(0.5, interval=(0.4, 0.61234), note="12 images"))
    made.add(method="rollout", insertion_area=NOT_RUN)
    return made


def test_cells_are_formatted_by_their_column(table: Table) -> None:
    assert table.to_markdown().splitlines() == [
        "**all methods**",
        "",
        "| method | time (ms) | insertion area |",
        "| --- | ---: | ---: |",
        "| kernelshap | 1,234.6 | 0.912 ± 0.004 |",
        "| a \\| b | 0.0 | 0.500 (0.400 to 0.612) (12 images) |",
        "| rollout | - | not run |",
        "",
        "means over 100 images",
    ]


def test_a_row_is_a_line_of_text_without_its_empty_cells(table: Table) -> None:
    assert table.line(0) == "kernelshap: time (ms) 1,234.6, insertion area 0.912 ± 0.004"
    assert table.line() == "rollout: insertion area not run"


def test_the_terminal_shows_the_same_cells(table: Table) -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table.to_terminal())
    text = captured.get()
    for shown in ("all methods", "time (ms)", "1,234.6", "0.912 ± 0.004", "not run", "means over 100 images"):
        assert shown in text


def test_json_has_plain_values_and_their_uncertainty(table: Table, tmp_path: Path) -> None:
    write_tables(tmp_path / "new" / "a.json", table, machine="here")
    written = json.loads((tmp_path / "new" / "a.json").read_text())
    assert written["machine"] == "here"
    [content] = written["tables"]
    assert content["columns"][1] == {"key": "time", "title": "time", "unit": "ms"}
    assert content["rows"] == [
        {"method": "kernelshap", "time": 1234.56, "insertion_area": 0.9123, "errors": {"insertion_area": 0.0041}},
        {
            "method": "a | b",
            "time": 0.02,
            "insertion_area": 0.5,
            "intervals": {"insertion_area": [0.4, 0.61234]},
            "notes": {"insertion_area": "12 images"},
        },
        {"method": "rollout", "time": None, "insertion_area": None, "notes": {"insertion_area": "not run"}},
    ]
    assert content["notes"] == ["means over 100 images"]


def test_numbers_that_are_not_finite_are_null_in_json(tmp_path: Path) -> None:
    table = Table("t", (Column("a", ".1f"), Column("b")))
    table.add(a=float("inf"), b=True)
    write_tables(tmp_path / "a.json", table, about={"c": float("nan")}, d=(1, "x", None, 1.5))
    written = json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail)
    assert written["tables"][0]["rows"] == [{"a": None, "b": True}]
    assert written["about"] == {"c": None}
    assert written["d"] == [1, "x", None, 1.5]


def test_markdown_is_written_to_md_files(table: Table, tmp_path: Path) -> None:
    write_tables(tmp_path / "a.md", table, table, machine="here")
    assert (tmp_path / "a.md").read_text().count(table.to_markdown()) == 2
    write_tables(None, table)  # nothing is written


def test_values_of_a_column(table: Table) -> None:
    assert table.values("time") == [1234.56, 0.02, None]
    with pytest.raises(AssertionError, match="columns are"):
        table.add(speed=3)
