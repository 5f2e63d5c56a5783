"""Writing a report's files: each whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from baseboard_conformance.exits import SuiteError
from baseboard_conformance.report.badge import badge
from baseboard_conformance.report.document import Document
from baseboard_conformance.report.html import html
from baseboard_conformance.report.junit import junit
from baseboard_conformance.report.markdown import markdown


def write_report(document: Document, folder: Path) -> None:
    """``report.json``, ``report.md``, ``report.html``, ``junit.xml`` and ``badge.json`` in ``folder``.

    Raises ``SuiteError`` when one cannot be written; nothing of it is left then.
    """
    files = {
        "report.json": document.text(),
        "report.md": markdown(document),
        "report.html": html(document),
        "junit.xml": junit(document),
        "badge.json": badge(document),
    }
    for name, text in files.items():
        _write(folder / name, text)


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)  # noqa: PTH105 - one step, on every system
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise SuiteError(f"{path} cannot be written: {error}") from error
