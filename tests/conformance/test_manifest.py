"""The frozen manifest and the cases that the suite has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from baseboard.contract import API_VERSION
from baseboard_conformance import cases
from baseboard_conformance.case import Profile
from baseboard_conformance.cases import all_cases
from baseboard_conformance.exits import SpecError, UsageError
from baseboard_conformance.manifest import drifted, freeze, from_plain, load_manifest, specs, to_plain

CASES = all_cases()
DOCS = Path(__file__).parents[2] / "docs/conformance.md"


def test_the_manifest_of_this_contract_is_frozen() -> None:
    """A change of what a case demands raises its revision, in a new contract minor: never edit the frozen file."""
    assert API_VERSION in specs()
    manifest = load_manifest(API_VERSION)
    assert drifted(manifest, CASES) == []
    assert freeze(CASES) == manifest


def test_a_case_that_demands_something_else_is_seen() -> None:
    manifest = load_manifest()
    name = "copy/illegal"
    changed = {**CASES, name: replace(CASES[name], revision=2)}
    assert drifted(manifest, changed) == [name]
    gone = {i: case for i, case in CASES.items() if i != name}
    assert drifted(manifest, gone) == [name]


def test_new_cases_are_provisional() -> None:
    manifest = load_manifest()
    fresh = sorted(set(CASES) - set(manifest.entries))
    assert {name.partition(".")[0] for name in fresh} == {"operator", "graph"}


def test_profiles_grow() -> None:
    manifest = load_manifest()
    smoke, core, full = (manifest.required(profile) for profile in Profile)
    assert smoke < core < full
    assert len(full) == len(manifest.entries)
    for dtype in ("float32", "bfloat16", "float16"):
        assert f"attention.plain/decode/{dtype}/preferred" in smoke


@pytest.mark.parametrize("spec", ["0.9", "1.7", "2.0", "one"])
def test_an_unknown_version_is_refused(spec) -> None:
    with pytest.raises(SpecError, match=r"this suite has 1\.0"):
        load_manifest(spec)


@pytest.mark.parametrize(
    "plain",
    [
        {"format": 2, "spec": "1.0", "cases": {}},
        {"format": 1, "cases": {}},
        {"format": 1, "spec": "1.0", "cases": {"a": {"profile": "core"}}},
        {"format": 1, "spec": "1.0", "cases": {"a": {"hash": "x", "profile": "huge"}}},
        {"format": 1, "spec": "1.0", "cases": ["a"]},
        [],
    ],
)
def test_a_malformed_manifest_is_refused(plain) -> None:
    with pytest.raises(UsageError, match=r"manifest|format"):
        from_plain(plain, "x.json")


def test_it_comes_back_as_it_was() -> None:
    manifest = load_manifest()
    assert from_plain(json.loads(json.dumps(to_plain(manifest))), "x.json") == manifest


def test_every_case_can_be_explained() -> None:
    for case in CASES.values():
        assert case.clause, case.id
        assert case.oracle, case.id
        assert case.title, case.id


def test_listing_cases_loads_no_torch() -> None:
    code = (
        "import sys; from baseboard_conformance.cases import all_cases; all_cases(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_no_case_names_a_device() -> None:
    """Only the host is known by name, where a rule is about it."""
    for path in Path(cases.__file__).parent.glob("*.py"):
        assert re.findall(r"[\"'](?:cuda|npu|xpu|mps|rocm|hip|hpu|xla)[:\"']", path.read_text()) == [], path.name


def test_the_docs_tell_how_many_cases_there_are() -> None:
    text, manifest = DOCS.read_text(), load_manifest()
    for profile in Profile:
        cases = sum(case.profile <= profile for case in CASES.values())
        assert f"| {cases:,}, of which {len(manifest.required(profile)):,} decide |" in text, profile.label
