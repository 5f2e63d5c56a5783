"""Five broken plugins, installed as distributions beside a sound one: each explains itself and harms nobody."""

from __future__ import annotations

import json

import pytest

REASONS = {
    "import_error": "import of baseboard_broken_import_error failed: "
    "ModuleNotFoundError: No module named 'a_vendor_library_that_nobody_has'",
    "misspelt_hook": "it implements 'probe_device', which is no hook; did you mean 'probe_devices'?",
    "wrong_version": "baseboard-broken-wrong-version is written for contract 2.0, "
    "this core has contract 1.0 and accepts 1.0: upgrade baseboard",
    "probe_raises": "probe_devices failed: RuntimeError: driver 470 answered with error 803",
    "neighbour": "2 plugins have the name 'neighbour': baseboard-broken-neighbour 0.1.0 (baseboard_broken_neighbour) "
    "and baseboard-broken-same-name 0.1.0 (baseboard_broken_same_name); uninstall all but one",
}
BROKEN = ("import_error", "misspelt_hook", "wrong_version", "probe_raises")

#: Whatever other backends this environment has, these tests are about the fixtures and the built-in one.
ONLY = ",".join((*REASONS, "reference"))


def report(host, **variables):
    result = host.cli("backends", "--json", **variables)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), {backend["name"]: backend for backend in json.loads(result.stdout)["backends"]}


def test_each_shows_its_reason_and_the_neighbour_is_not_harmed(host):
    whole, backends = report(host(*BROKEN, "neighbour"), BASEBOARD_BACKENDS=",".join((*BROKEN, "neighbour")))
    assert {name: backends[name]["reason"] for name in BROKEN} == {name: REASONS[name] for name in BROKEN}
    assert {name: backends[name]["loaded"] for name in BROKEN} == {
        "import_error": False,
        "misspelt_hook": False,
        "wrong_version": False,
        "probe_raises": True,
    }
    assert not any(backends[name]["available"] for name in BROKEN)
    assert backends["wrong_version"]["contract_version"] == "2.0"
    assert backends["neighbour"]["available"]
    assert backends["reference"]["reason"].startswith("not loaded: left out by BASEBOARD_BACKENDS=")
    assert whole["chosen"]["backend"] == "neighbour"
    assert whole["why"] == "neighbour is the only backend available"


def test_the_table_shows_each_reason_on_one_line(host):
    result = host(*BROKEN, "neighbour", "same_name").cli("backends", BASEBOARD_BACKENDS=ONLY)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    for name, reason in REASONS.items():
        assert f"{name}: {reason}" in lines
    assert "auto: reference is the only backend available" in lines
    assert "same_name was imported" not in result.stderr


def test_the_host_opens_its_own_backend_and_refuses_each_broken_one_with_its_reason(host):
    program = """
import json
from baseboard.contract import BackendUnavailable
from baseboard.discovery import open_backend
refusals = {}
for name in json.loads(NAMES):
    try:
        open_backend(name)
    except BackendUnavailable as error:
        refusals[name] = str(error)
with open_backend() as backend:
    print(json.dumps({"opened": backend.name, "refusals": refusals}))
"""
    all_six = host(*BROKEN, "neighbour", "same_name")
    result = all_six.python(f"NAMES = {json.dumps(list(REASONS))!r}\n{program}", BASEBOARD_BACKENDS=ONLY)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
        "opened": "reference",
        "refusals": {
            name: f"backend {name!r} cannot be used: {reason}; available are: reference"
            for name, reason in REASONS.items()
        },
    }


def test_a_restriction_keeps_the_others_out_of_the_process(host):
    program = """
import sys
from baseboard.discovery import examine
examine()
print(sorted(name for name in sys.modules if name.startswith("baseboard_broken")))
"""
    result = host("probe_raises", "wrong_version", "neighbour").python(
        program, BASEBOARD_BACKENDS="neighbour,reference"
    )
    assert result.stdout == "['baseboard_broken_neighbour']\n"


@pytest.mark.parametrize("command", [["backends"], ["backends", "--json"]])
def test_a_restriction_to_an_unknown_name_is_one_line_on_stderr(host, command):
    result = host("neighbour").cli(*command, BASEBOARD_BACKENDS="neigbour")
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: BASEBOARD_BACKENDS names neigbour, which is not installed; installed are: ")
    assert {"neighbour", "reference"} <= set(line.rpartition(": ")[2].split(", "))
