from __future__ import annotations

import pytest
import torch

from baseboard.contract import BackendFault
from baseboard_cuda.faults import device_faults


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: unspecified launch failure"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        RuntimeError("CUDA driver error: device-side assert triggered"),
    ],
)
def test_errors_of_the_device_are_faults(error) -> None:
    with (
        pytest.raises(BackendFault, match=r"the GPU failed during attention: .*(CUDA)") as caught,
        device_faults("attention"),
    ):
        raise error
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("shapes differ"), ValueError("CUDA error")]
)
def test_other_errors_stay_what_they_are(error) -> None:
    with pytest.raises(type(error)) as caught, device_faults("attention"):
        raise error
    assert caught.value is error
