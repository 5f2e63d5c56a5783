"""``torch.npu``, which torch_npu adds to torch: import this after it. Type checkers see no such attribute."""

from __future__ import annotations

from typing import Any, Final

import torch

npu: Final[Any] = torch.get_device_module("npu")
