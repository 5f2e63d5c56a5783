"""``baseboard backends``: which backends are here, which work, why not, and which one ``auto`` takes."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import Annotated, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from baseboard.contract import DeviceInfo
from baseboard.discovery import BackendReport, BackendState, Report, examine

GIBIBYTE: Final = 1024**3


def backends(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show modules and details of devices.")] = False,
) -> None:
    """Show the backends found, whether each is loaded and available, why not, and which one is chosen.

    Exits with 0 when plugins are broken, too: saying so is its purpose.
    """
    with redirect_stdout(sys.stderr):  # what a plugin prints while it loads is no part of the report
        report = examine()
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2, allow_nan=False))
        return
    console = Console()
    console.print(_backends_table(report))
    for backend in report.backends:
        if backend.reason is not None:
            console.print(Text.assemble((f"{backend.name}: ", "bold red"), backend.reason), soft_wrap=True)
    console.print(Text.assemble(("auto: ", "bold green"), report.why), soft_wrap=True)
    if verbose:
        _print_details(console, report)
    for warning in report.warnings:
        console.print(Text.assemble(("warning: ", "yellow"), warning), soft_wrap=True)


def _backends_table(report: Report) -> Table:
    whole = Column("distribution", overflow="fold")
    table = Table("backend", whole, "found", "loaded", "available", "devices", box=SIMPLE_HEAD)
    chosen = report.choice and report.choice.backend
    for backend in report.backends:
        table.add_row(
            Text(f"{backend.name}\nchosen", style="bold green") if backend is chosen else Text(backend.name),
            Text("\n".join(_origins(backend))),
            _mark(True),
            _mark(backend.state is not BackendState.FOUND),
            _mark(backend.state is BackendState.AVAILABLE),
            Text("\n".join(_device(device) for device in backend.devices)),
        )
    return table


def _origins(backend: BackendReport) -> list[str]:
    lines = [f"{source.distribution} {source.version}" for source in backend.plugin.sources]
    if backend.plugin.contract_version is not None:
        lines.append(f"contract {backend.plugin.contract_version}")
    return lines


def _mark(reached: bool) -> Text:
    return Text("yes", style="green") if reached else Text("no", style="red")


def _device(device: DeviceInfo) -> str:
    return f"{device.device_type}:{device.index} {device.name}"


def _print_details(console: Console, report: Report) -> None:
    for backend in report.backends:
        console.print(Text(backend.name, style="bold"))
        for line in _details(backend):
            console.print(Text(f"  {line}"), soft_wrap=True)
    for instrument in report.instruments:
        state = instrument.reason or ("active" if instrument.active else "not active")
        origins = " and ".join(source.origin for source in instrument.sources)
        console.print(Text(f"instrument {instrument.name}: {state}; from {origins}"), soft_wrap=True)


def _details(backend: BackendReport) -> list[str]:
    lines = [f"from {source.origin}" for source in backend.plugin.sources]
    for device in backend.devices:
        memory = f"{device.total_memory / GIBIBYTE:.1f} GiB" if device.total_memory else "memory unknown"
        lines.append(f"{_device(device)}: {device.arch}, {memory}, priority {device.priority}")
        if device.reason is not None:
            lines.append(f"  not available: {device.reason}")
        lines += [f"  {key}: {value}" for key, value in device.details.items()]
    return lines
