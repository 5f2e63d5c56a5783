from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from baseboard.backends import reference
from baseboard.backends.reference.backend import ReferenceBackend


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)  # small tensors gain nothing from more, and a busy machine loses


@pytest.fixture(scope="module")
def backend() -> Iterator[ReferenceBackend]:
    (device,) = reference.probe_devices()
    opened = reference.open_backend(device, {})
    assert isinstance(opened, ReferenceBackend)
    yield opened
    opened.close()
