"""The file of known failures: what it must hold, and what it does to results."""

from __future__ import annotations

import datetime

import pytest

from baseboard_conformance.exits import StaleWaiverError, UsageError
from baseboard_conformance.outcome import Outcome, Result
from baseboard_conformance.waivers import apply, check_waivers, read_waivers

GOOD = """
[[waiver]]
case = "copy/*"
kind = "xfail"
reason = "the copy engine drops pairs"
issue = "https://example.org/7"
expires = 2030-01-31
"""
TODAY = datetime.date(2029, 1, 1)


def read(tmp_path, text):
    path = tmp_path / "waivers.toml"
    path.write_text(text)
    return read_waivers(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not toml at all", "cannot be read"),
        ("x = 1", "one \\[\\[waiver\\]\\] table"),
        ("waiver = 3", "one \\[\\[waiver\\]\\] table"),
        ("waiver = [3]", "write it as a table"),
        (GOOD.replace("reason", "because"), "unknown fields because"),
        (GOOD.replace('"the copy engine drops pairs"', '" "'), "reason must be"),
        (GOOD.replace('issue = "https://example.org/7"', ""), "issue must be"),
        (GOOD.replace("2030-01-31", '"2030-01-31"'), "without quotes"),
        (GOOD.replace("2030-01-31", "2030-01-31T10:00:00"), "expires must be a day"),
        (GOOD.replace("xfail", "flaky"), "known are xfail, platform, tolerance"),
        (GOOD.replace("xfail", "tolerance"), "max_ratio belongs to"),
        (GOOD + "max_ratio = 3.0", "max_ratio belongs to"),
        (GOOD.replace("xfail", "tolerance") + "max_ratio = 0.5", "above 1"),
    ],
)
def test_a_malformed_file_is_refused_with_the_entry(tmp_path, text, words) -> None:
    with pytest.raises(UsageError, match=words):
        read(tmp_path, text)


def test_a_file_that_is_not_there_is_refused(tmp_path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_waivers(tmp_path / "none.toml")


def test_one_whose_time_is_over_is_an_error(tmp_path) -> None:
    waivers = read(tmp_path, GOOD)
    check_waivers(waivers, ["copy/many"], datetime.date(2030, 1, 31))
    with pytest.raises(StaleWaiverError, match="expired on 2030-01-31"):
        check_waivers(waivers, ["copy/many"], datetime.date(2030, 2, 1))


def test_one_that_matches_nothing_is_an_error(tmp_path) -> None:
    with pytest.raises(UsageError, match="matches no case"):
        check_waivers(read(tmp_path, GOOD), ["swap/many"], TODAY)


@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.CRASH, Outcome.TIMEOUT])
def test_a_known_failure_is_waived(tmp_path, outcome) -> None:
    seen = apply(read(tmp_path, GOOD), Result("copy/many", outcome, "lost pairs"))
    assert seen.outcome is Outcome.WAIVED
    assert seen.waiver == "xfail: the copy engine drops pairs (https://example.org/7)"
    assert seen.message == "lost pairs"


def test_passing_is_news(tmp_path) -> None:
    assert apply(read(tmp_path, GOOD), Result("copy/many", Outcome.PASS)).outcome is Outcome.XPASS
    flaky = read(tmp_path, GOOD.replace("xfail", "platform"))
    assert apply(flaky, Result("copy/many", Outcome.PASS)).outcome is Outcome.PASS


def test_other_cases_are_left_alone(tmp_path) -> None:
    waivers = read(tmp_path, GOOD)
    for result in (Result("swap/many", Outcome.FAIL), Result("copy/many", Outcome.NOT_CLAIMED)):
        assert apply(waivers, result) is result


def test_a_tolerance_is_waived_up_to_its_ratio(tmp_path) -> None:
    waivers = read(tmp_path, GOOD.replace("xfail", "tolerance") + "max_ratio = 3.0")
    near, far = ({"ratio": 0.5, "row_ratio": ratio} for ratio in (2.9, 3.1))
    assert apply(waivers, Result("copy/many", Outcome.FAIL, measures=near)).outcome is Outcome.WAIVED
    assert apply(waivers, Result("copy/many", Outcome.FAIL, measures=far)).outcome is Outcome.FAIL
    assert apply(waivers, Result("copy/many", Outcome.FAIL)).outcome is Outcome.FAIL
