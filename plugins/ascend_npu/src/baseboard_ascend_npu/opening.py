"""Opening an NPU: the first place where torch_npu is imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from baseboard.contract import BackendUnavailable, DeviceInfo

_OPTIONS: Final = ("device", "gqa_64")


def open_npu(device: DeviceInfo, options: Mapping[str, Any]) -> object:
    """The backend object. Raises ``BackendUnavailable`` with the reason."""
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise BackendUnavailable(
            f"the ascend_npu backend has no option {', '.join(unknown)}: it has {', '.join(_OPTIONS)}"
        )
    index = _index(options.get("device", f"npu:{device.index}"))
    shared_64 = _yes_or_no(options.get("gqa_64", "no"))

    try:
        import torch
        import torch_npu
    except (ImportError, RuntimeError) as error:  # what torch raises when its own import of torch_npu fails
        raise BackendUnavailable(f"torch_npu cannot be imported: {error}") from error

    from baseboard_ascend_npu.backend import AscendBackend
    from baseboard_ascend_npu.device_module import npu
    from baseboard_ascend_npu.operators import find_operators

    operators = find_operators(torch_npu.__version__)
    try:
        npu.set_device(index)
    except RuntimeError as error:
        raise BackendUnavailable(f"npu:{index} cannot be opened: {error}") from error
    return AscendBackend(torch.device("npu", index), operators, gqa_64=shared_64)


def _index(name: object) -> int:
    found = re.fullmatch(r"npu(?::(\d+))?", str(name))
    if found is None:
        raise BackendUnavailable(f"the ascend_npu backend cannot use device={name!r}: give npu or npu:INDEX")
    return int(found[1] or 0)


def _yes_or_no(value: object) -> bool:
    if value not in ("yes", "no"):
        raise BackendUnavailable(f"the option gqa_64={value!r} is not understood: give yes or no")
    return value == "yes"
