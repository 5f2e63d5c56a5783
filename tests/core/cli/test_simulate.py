"""``baseboard simulate`` on a small trace, and on bad ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from baseboard.cli.app import build_app
from baseboard.testing.replay import TraceError

ROWS = "\n".join(
    json.dumps({"timestamp": 100 * at, "input_length": 600, "output_length": 3, "hash_ids": [7, at]}) for at in range(5)
)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_figures_and_page_are_written(tmp_path: Path) -> None:
    trace, page = write(tmp_path / "t.jsonl", ROWS), tmp_path / "out.html"
    result = CliRunner().invoke(
        build_app(), ["simulate", str(trace), "--blocks", "200", "--block-size", "16", "--json", "--html", str(page)]
    )
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["counters"]["num_requests"] == 5
    assert figures["counters"]["prefix_hits"] == 4 * 512  # the first 512 tokens of all but the first request
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_text_is_for_people(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", ROWS)
    result = CliRunner().invoke(build_app(), ["simulate", str(trace), "-N", "200", "--limit", "2"])
    assert result.exit_code == 0
    assert result.stdout.startswith("2 requests in")


def test_bad_rows_stop_it_unless_they_may_be_left_out(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", ROWS + "\n{}")
    with pytest.raises(TraceError, match="row 6, column timestamp"):
        CliRunner().invoke(build_app(), ["simulate", str(trace), "-N", "200"], catch_exceptions=False)
    result = CliRunner().invoke(build_app(), ["simulate", str(trace), "-N", "200", "--skip-bad"])
    assert "left out         1 rows" in result.stdout
