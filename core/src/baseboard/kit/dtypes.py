"""The contract's dtype names as torch dtypes."""

from __future__ import annotations

from typing import Final, get_args

import torch

from baseboard.contract import DType

_DTYPES: Final = {name: getattr(torch, name) for name in get_args(DType)}


def torch_dtype(name: str) -> torch.dtype:
    """``"bfloat16"`` as ``torch.bfloat16``. ``ValueError`` for a name that the contract does not have."""
    if name not in _DTYPES:
        raise ValueError(f"dtype {name!r} is not known: the contract has {', '.join(_DTYPES)}")
    return _DTYPES[name]


def dtype_name(dtype: torch.dtype) -> DType:
    """``torch.bfloat16`` as ``"bfloat16"``. ``ValueError`` for a dtype that the contract does not have."""
    for name in get_args(DType):
        if _DTYPES[name] == dtype:
            return name
    raise ValueError(f"{dtype} is not a dtype of the contract, which has {', '.join(_DTYPES)}")
