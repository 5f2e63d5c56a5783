"""The HTML report in a real browser: it opens, it fits a phone, it prints."""

from __future__ import annotations

import html as escaping
import shutil
import struct
import subprocess
from dataclasses import replace

import pytest

from baseboard_conformance.case import Profile
from baseboard_conformance.outcome import Outcome
from baseboard_conformance.report.html import html
from conformance.reports import all_pass, document

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# A browser is no Python package: CI installs it, and elsewhere these tests have nothing to run in.
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: apt-get install chromium")

PHONE = 390
FRAME = """<!doctype html><iframe id="page" width="{width}" height="800" style="border:0" srcdoc="{page}"></iframe>
<p id="found"></p><script>
document.getElementById("page").onload = () => {{
  const root = document.getElementById("page").contentDocument.documentElement;
  document.getElementById("found").textContent = "width " + root.scrollWidth + " tables " +
    root.querySelectorAll("table").length + " cells " + root.querySelectorAll("table.matrix td").length;
}};</script>"""


@pytest.fixture(scope="module")
def page() -> str:
    """A full report with a failure, a long message and a waiver."""
    results = all_pass(Profile.FULL)
    for case, outcome in (
        ("copy/many", Outcome.FAIL),
        ("swap/many", Outcome.WAIVED),
        ("zero/nothing", Outcome.TIMEOUT),
    ):
        results[case] = replace(results[case], outcome=outcome, message="x" * 300 + "\n" + "word " * 80, waiver="w")
    return html(document(results, Profile.FULL, dtypes=("float32", "bfloat16", "float16")))


def browse(*arguments: object) -> bytes:
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=120, check=True).stdout


def test_it_fits_a_phone(page, tmp_path) -> None:
    path = tmp_path / "frame.html"
    path.write_text(FRAME.format(width=PHONE, page=escaping.escape(page)))
    dom = browse("--virtual-time-budget=5000", "--dump-dom", path.as_uri()).decode()
    found = dom.partition('<p id="found">')[2].partition("</p>")[0].split()
    assert found, dom[-500:]
    width, tables, cells = int(found[1]), int(found[3]), int(found[5])
    assert width == PHONE  # wide tables scroll in their own boxes, the page does not
    assert tables == 5  # groups, one matrix for each dtype, facts
    assert cells == 3 * 8 * 10


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_it_is_a_picture(page, tmp_path, width) -> None:
    path, shot = tmp_path / "report.html", tmp_path / "shot.png"
    path.write_text(page)
    browse(f"--window-size={width},1500", f"--screenshot={shot}", path.as_uri())
    data = shot.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24])[1] == 1500
    assert len(data) > 20_000  # a blank page is a tenth of that


def test_it_prints(page, tmp_path) -> None:
    path, pdf = tmp_path / "report.html", tmp_path / "report.pdf"
    path.write_text(page)
    browse("--no-pdf-header-footer", f"--print-to-pdf={pdf}", path.as_uri())
    data = pdf.read_bytes()
    assert data.startswith(b"%PDF")
    assert 1 < data.count(b"/Type /Page\n") + data.count(b"/Type /Page ") + data.count(b"/Type/Page") < 12
