"""The command line: what each command says, and how each ends."""

from __future__ import annotations

import json

import pytest

from baseboard_conformance.case import Profile
from baseboard_conformance.exits import ExitCode
from baseboard_conformance.mutants.catalog import MUTANTS, VARIANTS
from baseboard_conformance.mutants.plugins import write_plugins
from baseboard_conformance.outcome import Outcome
from baseboard_conformance.report.folder import write_report
from conformance.reports import all_pass, document

FEW = ("--case", "copy/*", "--case", "zero/*")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--backend", "referenze"), "did you mean reference?"),
        (("run", "--backend", "reference", "--profile", "huge"), "known are smoke, core, full"),
        (("run", "--backend", "reference", "--case", "copy/al_layers"), "did you mean copy/all_layers"),
        (("run", "--backend", "reference", "--seed", "-3"), "neither a number"),
        (("run", "--backend", "reference", "--allow", "all"), "known is partial"),
        (("run", "--backend", "reference", "--workers", "0"), "--workers"),
        (("run", "--backend", "reference", "--waivers", "none.toml"), "cannot be read"),
        (("run",), "Missing option"),
        (("explain", "copy/al_layers"), "did you mean copy/all_layers"),
        (("replay", "copy/nowhere", "--backend", "reference"), "there is no case"),
        (("replay", "x.npz", "--backend", "reference"), "cannot be read as evidence"),
        (("verify", "none.json"), "cannot be read as a report"),
        (("list", "nothing/*"), "no case of profile full"),
        (("selfcheck", "--mutant", "nobody"), "there is no mutant nobody"),
        (("nonsense",), "No such command"),
    ],
)
def test_a_wrong_command_line_ends_with_4(cli, arguments, words) -> None:
    done = cli(*arguments)
    assert done.returncode == ExitCode.USAGE, done.stdout + done.stderr
    assert words in " ".join(done.stderr.split())


def test_an_unknown_contract_ends_with_13(cli) -> None:
    done = cli("run", "--backend", "reference", "--spec", "9.9")
    assert (done.returncode, "this suite has 1.0" in done.stderr) == (ExitCode.SPEC_UNSUPPORTED, True)


def test_a_backend_without_device_ends_with_12(cli, tmp_path) -> None:
    package = tmp_path / "absent.py"
    package.write_text(
        "from baseboard.contract import BackendUnavailable, DeviceInfo, hookimpl\n"
        "@hookimpl\ndef contract_version(): return '1.0'\n"
        "@hookimpl\ndef probe_devices(): return [DeviceInfo('absent', 'x', 0, 'X', 'x', 0, False, 'no driver')]\n"
        "@hookimpl\ndef open_backend(device, options): raise BackendUnavailable('no')\n"
    )
    info = tmp_path / "absent-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: absent\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[baseboard.backends]\nabsent = absent\n")
    done = cli("run", "--backend", "absent", "--profile", "smoke", paths=(tmp_path,))
    assert done.returncode == ExitCode.BACKEND_UNAVAILABLE
    assert "no driver" in done.stderr


@pytest.fixture(scope="module")
def mutants(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutants")
    write_plugins(folder, (*MUTANTS, *VARIANTS))
    return folder


def test_a_failing_backend_ends_with_1_and_verify_agrees(cli, mutants, tmp_path) -> None:
    done = cli("run", "--backend", "copy-first-layer", *FEW, "--report-dir", "out", paths=(mutants,))
    assert done.returncode == ExitCode.NOT_CONFORMANT, done.stderr
    assert "FAIL copy/all_layers" in done.stdout
    assert "again: baseboard-conformance replay copy/all_layers --backend copy-first-layer --seed 0" in done.stdout
    assert cli("verify", "out/report.json").returncode == ExitCode.NOT_CONFORMANT
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["verdict"]["counts"]["FAIL"] >= 1
    assert cli("replay", "copy/all_layers", "--backend", "copy-first-layer", paths=(mutants,)).returncode == 1


def test_only_some_cases_are_partial(cli, mutants) -> None:
    arguments = ("run", "--backend", "plain", "--case", "zero/*")
    assert cli(*arguments, paths=(mutants,)).returncode == ExitCode.PARTIAL
    assert cli(*arguments, "--allow", "partial", paths=(mutants,)).returncode == ExitCode.CONFORMANT


def test_waivers_decide_how_it_ends(cli, mutants, tmp_path) -> None:
    entry = '[[waiver]]\ncase = "{}"\nkind = "xfail"\nreason = "r"\nissue = "i"\nexpires = {}\n'
    (tmp_path / "w.toml").write_text(entry.format("copy/*_layers", "2099-01-01"))
    run = ("run", "--case", "copy/all_layers", "--waivers", "w.toml", "--backend")
    assert cli(*run, "copy-first-layer", paths=(mutants,)).returncode == ExitCode.PARTIAL
    assert cli(*run, "plain", paths=(mutants,)).returncode == ExitCode.STALE_WAIVER
    (tmp_path / "w.toml").write_text(entry.format("copy/*_layers", "2001-01-01"))
    assert cli(*run, "plain", paths=(mutants,)).returncode == ExitCode.STALE_WAIVER
    (tmp_path / "w.toml").write_text(entry.format("copy/none", "2099-01-01"))
    assert cli(*run, "plain", paths=(mutants,)).returncode == ExitCode.USAGE


def test_evidence_is_replayed_as_it_was(cli, mutants) -> None:
    run = ("run", "--backend", "interleaved-heads", "--case", "gqa/decode/float32/r3", "--report-dir", "out")
    assert cli(*run, paths=(mutants,)).returncode == ExitCode.NOT_CONFORMANT
    replay = ("replay", "out/failures/gqa--decode--float32--r3.npz", "--backend")
    wrong = cli(*replay, "interleaved-heads", paths=(mutants,))
    assert (wrong.returncode, "h % Hkv" in wrong.stdout) == (1, True)
    assert cli(*replay, "reference").returncode == ExitCode.CONFORMANT


def test_list_and_explain_tell_what_a_case_is(cli) -> None:
    listed = cli("list", "copy/*").stdout.split("\n")
    assert "smoke copy/illegal" in listed
    told = cli("explain", "attention.softcap/decode/float32/d64").stdout
    for words in ("softcap * tanh(x / softcap)", "NumPy float64", "at most 2x", "dtype float32", "features softcap"):
        assert words in told
    assert "provisional" in cli("list", "operator.rms_norm/*").stdout


def test_diff_and_matrix_read_reports(cli, tmp_path) -> None:
    worse = all_pass()
    case = worse["copy/nothing"]
    worse["copy/nothing"] = type(case)(case.case, Outcome.FAIL, "lost")
    write_report(document(all_pass()), tmp_path / "old")
    write_report(document(worse, name="other"), tmp_path / "new")
    found = cli("diff", "old/report.json", "new/report.json")
    assert found.returncode == ExitCode.NOT_CONFORMANT
    assert "worse   copy/nothing: PASS -> FAIL" in found.stdout
    assert cli("diff", "old/report.json", "old/report.json").stdout.strip() == "no difference"
    assert "| copy | ✅ 4/4 | ❌ 3/4 |" in cli("matrix", "old/report.json", "new/report.json").stdout


def test_verify_refuses_an_edited_report(cli, tmp_path) -> None:
    write_report(document(all_pass(Profile.SMOKE)), tmp_path)
    path = tmp_path / "report.json"
    assert cli("verify", "report.json").returncode == ExitCode.CONFORMANT
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    edited = cli("verify", "report.json")
    assert edited.returncode == ExitCode.NOT_CONFORMANT
    assert "changed after it was written" in edited.stderr
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 7'))
    assert cli("verify", "report.json").returncode == ExitCode.USAGE


def test_support_and_perf_look_at_a_backend(cli) -> None:
    told = cli("support", "--backend", "reference").stdout
    assert "float32, bfloat16, float16" in told
    assert "smoke: claims 217 of 223 cases" in told
    timed = cli("perf", "--backend", "reference", "--seconds", "0.05")
    assert timed.returncode == 0, timed.stderr
    for name in ("copy_blocks", "swap_blocks out", "swap_blocks in", "zero_blocks", "decode bfloat16"):
        assert name in timed.stdout


def test_init_refuses_bad_names_and_full_folders(cli, tmp_path) -> None:
    assert cli("init", "new", "--name", "My Chip").returncode == ExitCode.USAGE
    assert cli("init", "new", "--name", "class").returncode == ExitCode.USAGE
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("")
    assert cli("init", "full", "--name", "chip").returncode == ExitCode.USAGE
