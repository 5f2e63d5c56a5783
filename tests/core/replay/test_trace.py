"""Reading traces: both formats, and what is said of bad rows."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from baseboard.testing.replay import TraceError, read_trace

GOOD = '{"timestamp": 1000, "input_length": 600, "output_length": 3, "hash_ids": [7, 9]}\n'
LATER = '{"timestamp": 3500, "input_length": 512, "output_length": 1, "hash_ids": [7]}\n'


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_mooncake_rows_become_requests_in_order_of_time(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.jsonl", LATER + GOOD))
    first, second = trace.requests
    assert (first.seconds, first.num_prompt, first.num_output) == (0.0, 600, 3)
    assert second.seconds == 2.5
    assert first.prompt() == (7,) * 512 + (9,) * 88
    assert second.prompt() == (7,) * 512


def test_azure_rows_share_nothing(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
    )
    first, second = read_trace(write(tmp_path / "t.csv", text)).requests
    assert second.seconds == pytest.approx(4.314579, abs=1e-6)
    assert (first.num_prompt, first.num_output, second.num_prompt) == (374, 44, 396)
    assert set(first.prompt()).isdisjoint(second.prompt())


def test_gzip_is_seen_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(GOOD.encode()))
    assert len(read_trace(path).requests) == 1


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("{", "row 2: no JSON"),
        ('{"timestamp": 0, "output_length": 3}', "row 2, column input_length: None is no number"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 3}', "row 2, column input_length: 0 must be at least 1"),
        ('{"timestamp": "x", "input_length": 5, "output_length": 3}', "row 2, column timestamp: 'x' is no number"),
        (
            '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1]}',
            "row 2, column hash_ids: 1 ids do not cover 600 tokens",
        ),
        (
            '{"timestamp": 0, "input_length": 6, "output_length": 3, "hash_ids": [-1]}',
            "row 2, column hash_ids: ids are 0 to 2147483647",
        ),
        (
            '{"timestamp": 0, "input_length": 6, "output_length": 3, "hash_ids": ["a"]}',
            "row 2, column hash_ids: a list of whole numbers",
        ),
        ("[1]", "row 2: not an object"),
    ],
)
def test_a_bad_row_is_named_and_may_be_left_out(tmp_path: Path, row: str, complaint: str) -> None:
    path = write(tmp_path / "t.jsonl", GOOD + row + "\n" + LATER)
    with pytest.raises(TraceError, match=complaint) as refusal:
        read_trace(path)
    assert "--skip-bad" in str(refusal.value)
    trace = read_trace(path, skip_bad=True)
    assert [request.number for request in trace.requests] == [0, 2]
    assert len(trace.skipped) == 1
    assert trace.skipped[0].startswith(complaint)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("", "missing TIMESTAMP"), ("a,b\n1,2\n", "missing TIMESTAMP"), ("{\n", "no JSON")],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        read_trace(write(tmp_path / "t", text))


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("2023-11-16 18:15:46.68,many,44", "row 3, column ContextTokens: 'many' is no whole number"),
        ("2023-11-16 18:15:46.68,5,4.5", "row 3, column GeneratedTokens: '4.5' is no whole number"),
        ("yesterday,5,4", "row 3, column TIMESTAMP: 'yesterday' is no time"),
        ("2023-11-16 18:15:46.68,5", "row 3, column GeneratedTokens: it has no such cell"),
        ("2023-11-16 18:15:46.68,0,4", "row 3, column ContextTokens: 0 must be at least 1"),
    ],
)
def test_a_bad_azure_row_is_named_by_line_and_column_and_may_be_left_out(
    tmp_path: Path, row: str, complaint: str
) -> None:
    good = "2023-11-16 18:15:46.68,374,44\n"
    path = write(tmp_path / "t.csv", f"TIMESTAMP,ContextTokens,GeneratedTokens\n{good}{row}\n{good}")
    with pytest.raises(TraceError) as refusal:
        read_trace(path)
    assert str(refusal.value).startswith(complaint)
    trace = read_trace(path, skip_bad=True)
    assert [request.number for request in trace.requests] == [0, 2]
    assert [text.startswith(complaint) for text in trace.skipped] == [True]


def test_a_missing_file_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none")
