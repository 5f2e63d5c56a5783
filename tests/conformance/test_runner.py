"""Whatever a backend does to its process is one result, and the run goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from baseboard_conformance.case import Profile, case_seed
from baseboard_conformance.cases import all_cases
from baseboard_conformance.exits import ExitCode, SuiteError, UnavailableError
from baseboard_conformance.mutants.catalog import MUTANTS, VARIANTS
from baseboard_conformance.mutants.plugins import write_plugins
from baseboard_conformance.outcome import Outcome
from baseboard_conformance.run import Request, plan, run
from baseboard_conformance.runner.process import Launch
from baseboard_conformance.runner.station import Settings, Station

CASES = all_cases()
#: Quick ones: two of each kind that a bad backend may spoil.
FEW = ("copy/nothing", "zero/nothing", "swap/nothing", "copy/all_layers")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder in which every mutant and variant is installed."""
    folder = tmp_path_factory.mktemp("installed")
    write_plugins(folder, (*MUTANTS, *VARIANTS))
    return folder


def request_of(backend, folder, **options) -> Request:
    usual = {"profile": Profile.SMOKE, "patterns": FEW, "paths": (folder,)}
    return Request(backend, **(usual | options))


@pytest.mark.parametrize(
    ("backend", "case", "outcome", "words"),
    [
        ("crashes", "swap/nothing", Outcome.CRASH, "SIGSEGV"),
        ("hangs", "zero/nothing", Outcome.TIMEOUT, "no answer within 4 seconds"),
        ("exits", "copy/nothing", Outcome.CRASH, "sys.exit(0)"),
        ("untyped-shortage", "allocation/out_of_memory", Outcome.FAIL, "MemoryError"),
    ],
)
def test_a_backend_that_takes_its_process_down_or_runs_out_of_memory(installed, backend, case, outcome, words) -> None:
    results = {}
    wanted = plan(request_of(backend, installed, timeout=4.0, patterns=(*FEW, case)))
    document = run(wanted, lambda result: results.update({result.case: result}))
    assert results[case].outcome is outcome
    assert words in results[case].message
    assert set(results) == {*FEW, case}
    others = {name: r.outcome for name, r in results.items() if name.partition("/")[0] != case.partition("/")[0]}
    assert set(others.values()) == {Outcome.PASS}, others
    assert document.code is ExitCode.NOT_CONFORMANT


def test_a_hang_shows_where_it_hangs(installed) -> None:
    with Station(Settings(Launch("hangs", (installed,)), timeout=4.0)) as station:
        result = station.do(CASES["zero/nothing"])
    assert "wrong_manners.py" in result.message


def test_a_bad_guest_does_not_disturb(installed) -> None:
    """Prints megabytes and lines that look like answers, changes the folder, takes over signals, reads stdin."""
    here, handler = Path.cwd(), signal.getsignal(signal.SIGINT)
    results = []
    run(plan(request_of("noisy", installed)), results.append)
    assert [result.outcome for result in results] == [Outcome.PASS] * len(FEW)
    assert (Path.cwd(), signal.getsignal(signal.SIGINT)) == (here, handler)


def test_seeds_do_not_depend_on_what_else_runs(installed) -> None:
    results = []
    run(plan(request_of("plain", installed, patterns=("copy/all_layers",), seed=5)), results.append)
    assert [result.seed for result in results] == [case_seed("copy/all_layers", 5)]


def test_two_workers_do_what_one_does(installed) -> None:
    results = []
    run(plan(request_of("plain", installed, workers=2)), results.append)
    assert {result.case: result.outcome for result in results} == dict.fromkeys(FEW, Outcome.PASS)


def test_a_backend_that_does_not_open_is_no_result(installed) -> None:
    with pytest.raises(UnavailableError, match="'no_such' is not installed"):
        run(plan(request_of("no_such", installed)), print)


def test_a_case_fails_with_its_inputs_saved(installed, tmp_path) -> None:
    case = "gqa/decode/float32/r3"
    wanted = plan(request_of("interleaved-heads", installed, patterns=(case,), report_dir=tmp_path))
    results = []
    run(wanted, results.append)
    assert results[0].evidence == "failures/gqa--decode--float32--r3.npz"
    assert (tmp_path / results[0].evidence).exists()
    assert "h % Hkv" in results[0].message


def test_a_folder_that_cannot_be_made_is_a_fault_of_the_machine(installed, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SuiteError, match="cannot be written"):
        plan(request_of("plain", installed, report_dir=tmp_path / "file" / "report")).settings()
