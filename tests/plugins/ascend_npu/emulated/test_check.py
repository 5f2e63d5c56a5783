"""The command that asks a real NPU what the documents leave open, asked of stand-ins that answer differently."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from baseboard_ascend_npu import check
from baseboard_ascend_npu.driver import Driver
from baseboard_ascend_standin.emulator.calls import Chip
from baseboard_ascend_standin.emulator.dispatch import EmulatedNpu

DOCUMENT = (Path(__file__).parents[4] / "docs" / "ascend.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("excludes_self", [True, False])
@pytest.mark.parametrize("gqa_64", [True, False])
def test_the_open_questions_are_answered(
    npu: EmulatedNpu, capsys: pytest.CaptureFixture[str], excludes_self: bool, gqa_64: bool
) -> None:
    npu.chip = Chip(npu.chip.soc, band_excludes_self=excludes_self, gqa_64=gqa_64)
    assert check.main() == 0
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["a window of W keys is pre_tokens"] == ("W - 1" if excludes_self else "W")
    answer = lines["fused attention with shared heads of 64"]
    assert answer.startswith(
        "works: open the backend with the option gqa_64=yes" if gqa_64 else "refused, leave gqa_64=no"
    )
    assert lines["batched copies"] == "aclrtMemcpyBatchAsync is there, and blocks come back as they were"
    assert re.fullmatch(r"\d+ us a call, over the one that is used \d+", lines["fused attention over the other layout"])
    agreeing = {question for question, answer in lines.items() if answer.startswith("differs from float32 by 0.")}
    assert {"captured decode steps, fused", "captured decode steps, paged"} < agreeing
    assert "fused attention, a prefix shared in a small pool" in agreeing
    assert len(agreeing) == 8
    rows = DOCUMENT.partition("## Open questions")[2].partition("\n## ")[0].splitlines()
    named = [name for row in rows if row.startswith("| ") for name in re.findall(r"`([^`]+)`", row.split(" | ")[-1])]
    assert named.pop(0) == "make npu-check"  # the head of the column
    assert len(named) == 7
    assert set(named) <= lines.keys()


def test_a_wrong_operator_fails_the_check(
    npu: EmulatedNpu, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import baseboard_ascend_standin.emulator.fused as emulated

    real = emulated._attend
    monkeypatch.setattr(emulated, "_attend", lambda call: real(replace(call, scale=2 * call.scale)))
    assert check.main() == 1
    out = capsys.readouterr().out
    assert "FAILED  fused attention, heads of 128" in out
    assert "accepted but wrong" not in out  # it is refused before
    assert "FAILED  paged" not in out


def test_no_npu_to_ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baseboard_ascend_npu.probe.ask_driver", lambda: Driver(0, "Ascend910B2"))
    assert check.main() == 2
    assert "no NPU to ask: the driver sees no NPU" in capsys.readouterr().out
