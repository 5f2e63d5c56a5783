"""What a user may choose, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from baseboard.contract import BackendUnavailable
from baseboard_cuda.options import Options, read_options


def test_defaults() -> None:
    assert read_options({}, {}) == Options("token_head", "triton", None)


def test_what_is_given_goes_before_the_environment() -> None:
    environment = {"BASEBOARD_CUDA_ATTENTION": "auto", "BASEBOARD_CUDA_FP8_SCALE": "tensor", "BASEBOARD_CUDA_TILES": ""}
    assert read_options({}, environment) == Options("tensor", "auto", None)
    assert read_options({"attention": "varlen"}, environment) == Options("tensor", "varlen", None)
    assert read_options({}, {"BASEBOARD_CUDA_TILES": "mine.json"}).tiles == Path("mine.json")


@pytest.mark.parametrize(
    ("given", "environment", "said"),
    [
        ({"scale": 1}, {}, "no option scale: it has fp8_scale, attention, tiles"),
        ({"device": "h100"}, {}, "no option device"),
        ({"fp8_scale": "row"}, {}, "fp8_scale='row' is not known: it is one of token_head, tensor"),
        ({"fp8_scale": True}, {}, "fp8_scale=True is not known"),
        ({}, {"BASEBOARD_CUDA_ATTENTION": "fastest"}, "attention='fastest' is not known: it is one of triton, auto"),
    ],
)
def test_what_makes_no_sense_is_named(given, environment, said) -> None:
    with pytest.raises(BackendUnavailable, match=said):
        read_options(given, environment)
