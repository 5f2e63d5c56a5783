"""The verdict, the report's forms, and what a reader can check."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from baseboard_conformance.case import Profile
from baseboard_conformance.conclusion import conclude
from baseboard_conformance.exits import ExitCode, UsageError
from baseboard_conformance.outcome import Outcome, Result
from baseboard_conformance.report.badge import badge
from baseboard_conformance.report.comparing import compare, overview
from baseboard_conformance.report.document import Document, digest, problems
from baseboard_conformance.report.folder import write_report
from baseboard_conformance.report.html import html
from baseboard_conformance.report.junit import junit
from baseboard_conformance.report.markdown import markdown
from conformance.reports import MANIFEST, all_pass, document

CASE = "copy/all_layers"


def verdict(results, dtypes=("float32",)):
    return conclude(list(results.values()), MANIFEST, Profile.SMOKE, dtypes)


def changed(outcome, case=CASE, **fields):
    results = all_pass()
    return results | {case: replace(results[case], outcome=outcome, **fields)}


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome.PASS, ExitCode.CONFORMANT),
        (Outcome.NOT_CLAIMED, ExitCode.CONFORMANT),
        (Outcome.FAIL, ExitCode.NOT_CONFORMANT),
        (Outcome.CRASH, ExitCode.NOT_CONFORMANT),
        (Outcome.TIMEOUT, ExitCode.NOT_CONFORMANT),
        (Outcome.WAIVED, ExitCode.PARTIAL),
        (Outcome.XPASS, ExitCode.STALE_WAIVER),
        (Outcome.ERROR, ExitCode.INTERNAL_ERROR),
    ],
)
def test_one_outcome_decides(outcome, code) -> None:
    assert verdict(changed(outcome)).code is code


def test_a_case_that_did_not_run_makes_it_partial() -> None:
    results = all_pass()
    del results[CASE]
    assert verdict(results).code is ExitCode.PARTIAL
    assert "1 of" in verdict(results).sentence


def test_nothing_executed_is_never_green() -> None:
    nothing = {case: replace(r, outcome=Outcome.NOT_CLAIMED) for case, r in all_pass().items()}
    assert verdict(nothing).code is ExitCode.NOTHING_RAN
    assert verdict({}).code is ExitCode.NOTHING_RAN


def test_a_declared_dtype_must_have_been_computed() -> None:
    results = {
        case: replace(r, outcome=Outcome.NOT_CLAIMED) if "/float16/" in case else r for case, r in all_pass().items()
    }
    assert verdict(results, ("float32", "bfloat16")).code is ExitCode.CONFORMANT
    assert verdict(results, ("float32", "float16")).code is ExitCode.NOT_CONFORMANT
    assert verdict(results, ()).code is ExitCode.NOT_CONFORMANT


def test_provisional_cases_decide_nothing() -> None:
    results = all_pass() | {"operator.rms_norm/float32": Result("operator.rms_norm/float32", Outcome.FAIL)}
    assert verdict(results).code is ExitCode.CONFORMANT
    assert verdict(results).num_provisional == 1


# --- report.json ------------------------------------------------------------------------------------------------------


def test_it_comes_back_as_it_was(tmp_path) -> None:
    made = document(changed(Outcome.FAIL, message="lost\na pair"))
    write_report(made, tmp_path)
    again = Document.read(tmp_path / "report.json")
    assert again.plain == json.loads(made.text())
    assert sorted(again.results, key=lambda r: r.case) == sorted(made.results, key=lambda r: r.case)
    assert problems(again) == []
    assert {path.name for path in tmp_path.iterdir()} == {
        "report.json",
        "report.md",
        "report.html",
        "junit.xml",
        "badge.json",
    }


def test_equal_reports_are_equal_files() -> None:
    results = all_pass()
    backwards = dict(reversed(results.items()))
    assert document(results).text() == document(backwards).text()


def edited(edit, keep_digest=False):
    plain = json.loads(document(changed(Outcome.FAIL, message="lost")).text())
    edit(plain)
    if not keep_digest:
        plain["digest"] = digest(plain)
    return problems(Document(plain))


def result_of(plain, case=CASE):
    return next(r for r in plain["results"] if r["case"] == case)


def test_an_edit_by_hand_is_found() -> None:
    def pass_it(plain) -> None:
        result_of(plain)["outcome"] = "PASS"

    assert any("digest" in problem for problem in edited(pass_it, keep_digest=True))
    assert any("verdict does not follow" in problem for problem in edited(pass_it))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda p: p["verdict"].update(code=0, word="conformant"), "verdict does not follow"),
        (lambda p: p["results"].remove(result_of(p)), "verdict does not follow"),
        (lambda p: p["results"].append(result_of(p)), "listed twice"),
        (lambda p: p.update(manifest="0" * 16), "manifest"),
        (lambda p: result_of(p, "swap/nothing")["measures"].update(ratio=1.5), "above what is allowed"),
        (lambda p: p.update(profile="full"), "verdict does not follow"),
    ],
)
def test_what_does_not_hold_together_is_found(edit, words) -> None:
    assert any(words in problem for problem in edited(edit))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "no report"),
        ('{"kind": "something"}', "no report"),
        ('{"kind": "baseboard-conformance-report", "schema": 2}', "schema 2.*upgrade"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, content, words) -> None:
    path = tmp_path / "report.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=words):
        Document.read(path)


DISK_FULL = """
    import resource, signal, sys
    from pathlib import Path
    from baseboard_conformance.exits import SuiteError
    from baseboard_conformance.report.folder import write_report
    from conformance.reports import all_pass, document

    made = document(all_pass())
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))  # no file may be larger: the disk is full
    try:
        write_report(made, Path(sys.argv[1]))
    except SuiteError as error:
        print(error)
        sys.exit(error.code)
"""


def test_a_full_disk_leaves_no_half_file(tmp_path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    command = [sys.executable, "-c", textwrap.dedent(DISK_FULL), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=with_tests_on_path())
    assert done.returncode == ExitCode.INTERNAL_ERROR, done.stderr
    assert "report.json cannot be written" in done.stdout
    assert list(tmp_path.iterdir()) == []


def with_tests_on_path():
    import os
    from pathlib import Path

    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


# --- the other forms --------------------------------------------------------------------------------------------------


def test_junit_tells_every_case() -> None:
    results = changed(Outcome.CRASH, message="SIGSEGV\x00\x1b[31m <&>")
    results["swap/nothing"] = replace(results["swap/nothing"], outcome=Outcome.NOT_CLAIMED, message="not declared")
    suite = ET.fromstring(junit(document(results)))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (str(len(results)), "1", "1")
    failure = suite.find("testcase[@classname='copy'][@name='all_layers']/failure")
    assert failure is not None
    assert failure.get("type") == "CRASH"
    assert "\ufffd" in (failure.text or "")


def test_the_badge_of_a_full_run_says_conformant() -> None:
    full = json.loads(badge(document(all_pass(Profile.FULL), Profile.FULL)))
    assert (full["label"], full["color"]) == ("baseboard conformant", "brightgreen")
    assert full["message"].startswith("contract 1.0 · full · ")
    smoke = json.loads(badge(document(all_pass())))
    assert smoke["label"] == "baseboard"
    assert json.loads(badge(document(changed(Outcome.FAIL))))["color"] == "red"
    waived = json.loads(badge(document(changed(Outcome.WAIVED))))
    assert waived["color"] == "yellow"
    assert waived["message"].endswith("1 waived")


def test_markdown_tells_failures_and_how_to_repeat_them() -> None:
    text = markdown(document(changed(Outcome.FAIL, message="lost a pair ```x")))
    assert "# chip: not conformant" in text
    assert "## FAIL copy/all_layers" in text
    assert "baseboard-conformance replay copy/all_layers --backend chip --seed 0" in text
    assert "✅ 0.50" in text


def test_html_escapes_what_a_backend_says() -> None:
    text = html(document(changed(Outcome.FAIL, message="<script>alert(1)</script>", evidence="failures/x.npz")))
    assert "<script" not in text
    assert "Chip &lt;1&gt;" in text
    assert 'href="failures/x.npz"' in text
    assert "http" not in text.replace("https://example", "")  # nothing is loaded from anywhere


# --- two and more -----------------------------------------------------------------------------------------------------


def test_a_difference_is_worse_better_or_other() -> None:
    old = changed(Outcome.FAIL)
    new = changed(Outcome.FAIL, "swap/nothing")
    new["trace/new"] = Result("trace/new", Outcome.PASS)
    del new["zero/nothing"]
    grown = "layout/padded/float32"
    new[grown] = replace(new[grown], measures={"ratio": 0.9, "row_ratio": 0.9})
    found = compare(document(old), document(new))
    assert found.worse == ("swap/nothing: PASS -> FAIL",)
    assert found.better == (f"{CASE}: FAIL -> PASS",)
    assert sorted(found.other) == [
        f"{grown}: error grew from 0.25 to 0.90 of the allowed",
        "trace/new: new, PASS",
        "zero/nothing: no longer run",
    ]


def test_many_backends_in_one_table() -> None:
    text = overview([document(all_pass()), document(changed(Outcome.FAIL), name="slow")])
    assert "| group | chip 1.0 | slow 1.0 |" in text
    assert "| copy | ✅ 4/4 | ❌ 3/4 |" in text
