from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from baseboard.cli import backends as backends_command
from baseboard.cli.app import build_app
from baseboard.discovery import examine
from core.discovery.fakes import FakePlugin, device, installation


@pytest.fixture
def run(monkeypatch):
    """``run(installation, *arguments)``: the command's output where that is installed."""

    def invoke(here, *arguments):
        monkeypatch.setattr(backends_command, "examine", lambda: examine(here))
        result = CliRunner().invoke(build_app(), list(arguments), env={"COLUMNS": "120"})
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


class Noisy(FakePlugin):
    def answer(self, value):
        print("welcome to chip")
        return super().answer(value)


HERE = installation(
    chip=Noisy([device("chip"), device("chip", 1, reason="in [bold]use")]),
    broken=ImportError("no [driver]"),
    instruments={"trace": object(), "torn": ImportError("no tracer")},
    active=("trace",),
)


def test_json_is_the_report_and_nothing_else(run):
    assert json.loads(run(HERE, "backends", "--json")) == examine(HERE).as_dict()


def test_the_table_has_marks_devices_reasons_the_choice_and_warnings(run):
    output = run(HERE, "backends")
    rows = [line.split() for line in output.splitlines()]
    assert ["broken", "baseboard-broken", "0.3.0", "yes", "no", "no"] in rows
    assert ["chip", "baseboard-chip", "0.3.0", "yes", "yes", "yes", "cpu:0", "chip", "chip", "0"] in rows
    assert ["chosen", "contract", "1.0", "cpu:1", "chip", "chip", "1"] in rows
    assert "broken: import of broken.plugin failed: ImportError: no [driver]" in output
    assert "auto: chip is the only backend available" in output
    assert "warning: instrument 'torn' cannot be used: ImportError: no tracer" in output
    assert "in [bold]use" not in output


def test_verbose_adds_modules_details_and_instruments(run):
    output = run(HERE, "backends", "--verbose")
    assert "from baseboard-chip 0.3.0 (chip.plugin)" in output
    assert "cpu:0 chip chip 0: v1, 1.0 GiB, priority 0" in output
    assert "not available: in [bold]use" in output
    assert "instrument trace: active; from baseboard-trace 0.3.0 (trace.plugin)" in output
    assert "instrument torn: ImportError: no tracer; from baseboard-torn" in output


def test_the_version_of_core_and_contract(run):
    assert run(HERE, "--version").endswith("(plugin contract 1.0)\n")


def test_listing_backends_imports_no_torch(host):
    program = """
import sys
sys.argv = ["baseboard", "backends"]
from baseboard.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code
print([name for name in ("torch", "transformers") if name in sys.modules])
"""
    result = host().python(program)
    assert result.stdout.splitlines()[-1] == "[]"
    assert "reference" in result.stdout


@pytest.mark.parametrize("debug", ["", "1"])
def test_a_traceback_is_shown_only_for_debugging(host, debug):
    result = host().cli("backends", BASEBOARD_BACKENDS="nobody", BASEBOARD_DEBUG=debug)
    assert result.returncode == 1
    assert "BASEBOARD_BACKENDS names nobody" in result.stderr
    assert ("Traceback" in result.stderr) == bool(debug)


@pytest.mark.parametrize("absent", ["typer", "rich"])
def test_without_the_extra_one_line_says_how_to_get_it(host, absent):
    program = f"import sys; sys.modules[{absent!r}] = None\nfrom baseboard.cli.main import main\nmain()"
    result = host().python(program)
    assert result.returncode == 1
    assert result.stderr == f'error: the command line needs {absent}: pip install "baseboard[torch]"\n'
