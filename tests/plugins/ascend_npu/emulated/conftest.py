"""The real torch_npu on the stand-in. One device, of the kind that STANDIN_SOC names."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from baseboard_ascend_standin.library import StandIn
from plugins.ascend_npu.emulated.opened import open_backend

if TYPE_CHECKING:
    from baseboard_ascend_npu.backend import AscendBackend
    from baseboard_ascend_standin.emulator.dispatch import EmulatedNpu

SOC = os.environ.setdefault("STANDIN_SOC", "Ascend910B2")
STANDIN = StandIn.load()  # before torch: importing torch imports torch_npu, and that looks for CANN

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_npu warns of its own doings while it is imported
    import torch

    torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore:Cannot create tensor with internal format:UserWarning")
    config.addinivalue_line("filterwarnings", "ignore:.*torch_npu.*:UserWarning")
    config.addinivalue_line("filterwarnings", "ignore:TypedStorage is deprecated:UserWarning")  # its way to copy


@pytest.fixture(scope="session")
def standin() -> StandIn:
    return STANDIN


@pytest.fixture(autouse=True)
def npu(standin: StandIn) -> Iterator[EmulatedNpu]:
    """Operators on NPU tensors are computed; whatever one of them raised later is raised at the end."""
    from baseboard_ascend_standin.emulator.calls import Chip
    from baseboard_ascend_standin.emulator.dispatch import EmulatedNpu

    emulated = EmulatedNpu(standin, Chip(SOC))
    with emulated:
        yield emulated
        torch.npu.synchronize()
    emulated.check()


@pytest.fixture
def nothing_kept(npu: EmulatedNpu) -> None:
    """What earlier tests gave back to torch's allocators would serve a request without asking the driver."""
    gc.collect()
    torch.npu.memory.empty_cache()
    torch.npu.host_empty_cache()


@pytest.fixture
def backend(npu: EmulatedNpu) -> Iterator[AscendBackend]:
    opened: Any = open_backend()
    yield opened
    opened.close()
