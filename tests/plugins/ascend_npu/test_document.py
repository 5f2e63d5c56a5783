"""The capability document says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from baseboard_ascend_npu import limits
from baseboard_ascend_npu.support import BLOCK_SIZES, CAPABILITIES

DOCUMENT = (Path(__file__).parents[3] / "docs" / "ascend.md").read_text(encoding="utf-8")
README = (Path(__file__).parents[3] / "plugins" / "ascend_npu" / "README.md").read_text(encoding="utf-8")
LIMITS = {name: value for name, value in vars(limits).items() if name.isupper()}


def rows() -> dict[str, str]:
    """The table of limits: by name in the code, the limit and its source."""
    found = re.findall(r"^\| `([A-Z_0-9]+)` \| (.+?) \| (.+?) \|$", DOCUMENT, re.MULTILINE)
    assert all(source.strip() for _, _, source in found)
    return {name: text for name, text, _ in found}


def test_every_limit_is_there_with_a_source() -> None:
    assert rows().keys() == LIMITS.keys()


@pytest.mark.parametrize("name", LIMITS)
def test_the_numbers_are_those_of_the_code(name: str) -> None:
    value = LIMITS[name]
    parts = value if isinstance(value, tuple) else (value,)
    for part in parts:
        assert (f"{part:,}" if isinstance(part, int) else part) in rows()[name]


def test_the_proof_is_told_as_it_is() -> None:
    proof = "run against torch_npu 2.13 on emulated CANN; not yet run on hardware"
    for text in (DOCUMENT, README):
        assert proof in " ".join(text.split())
        assert "make npu-check" in text


def test_the_promise() -> None:
    assert BLOCK_SIZES[0] == 128
    assert set(BLOCK_SIZES) == set(range(16, 1025, 16))
    assert len(BLOCK_SIZES) == 64
    assert CAPABILITIES.communicator == "hccl"
    assert not CAPABILITIES.features & {"softcap", "alibi"}
