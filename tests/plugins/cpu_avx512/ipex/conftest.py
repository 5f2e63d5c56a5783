"""The backend with IPEX's kernels: over the stand-in for its operators, and over the real ones where these are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import baseboard_cpu_avx512
from baseboard_cpu_avx512.backend import CpuBackend
from baseboard_cpu_avx512.ipex import installation
from plugins.cpu_avx512.ipex.standin import StandIn

_OBSTACLE = installation.obstacle()
_OPERATORS = ["stand-in", *(["IPEX"] if _OBSTACLE is None else [])]

collect_ignore = [] if _OBSTACLE is None else ["test_real.py"]


def pytest_report_header() -> list[str]:
    return [] if _OBSTACLE is None else [f"IPEX is not tested here but by a stand-in: {_OBSTACLE}"]


@pytest.fixture(params=_OPERATORS, scope="session")
def ipex(request: pytest.FixtureRequest) -> Iterator[CpuBackend]:
    (device,) = baseboard_cpu_avx512.probe_devices()
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "stand-in":
            patch.setattr(installation, "load_operators", StandIn)
        opened = baseboard_cpu_avx512.open_backend(device, {"kernels": "ipex"})
    assert isinstance(opened, CpuBackend)
    yield opened
    opened.close()
