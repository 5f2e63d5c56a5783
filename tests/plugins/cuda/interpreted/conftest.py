from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import baseboard_cuda
from baseboard.contract import DeviceInfo
from baseboard_cuda.backend import CudaBackend


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def interpreter() -> DeviceInfo:
    (device,) = [d for d in baseboard_cuda.probe_devices() if d.device_type == "cpu"]
    return device


@pytest.fixture(scope="module")
def backend(interpreter) -> Iterator[CudaBackend]:
    opened = baseboard_cuda.open_backend(interpreter, {})
    assert isinstance(opened, CudaBackend)
    yield opened
    opened.close()
