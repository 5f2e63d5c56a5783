"""The open backend that cases work on, and what they all need of it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import BackendHooks, Capabilities, DType, KVCache
from baseboard.discovery import Backend
from baseboard_conformance.numerics import Array
from baseboard_conformance.outcome import CheckFailedError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Bench:
    """One case's view of the backend."""

    backend: Backend
    name: str  #: as the user asked for it: what another process opens it by
    seed: int  #: the case's own
    shrinking: int = 40  #: attempts to find a smaller problem that is still wrong

    @property
    def hook(self) -> BackendHooks:
        return self.backend.hook

    @property
    def can(self) -> Capabilities:
        return self.backend.capabilities

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def tensor(self, values: Array, dtype: DType) -> torch.Tensor:
        """``values`` on the device; exact, because they are rounded to ``dtype`` already."""
        from baseboard.kit.dtypes import torch_dtype

        return to_torch(values.astype(np.float32)).to(torch_dtype(dtype)).to(self.hook.torch_device())

    def host(self, tensor: torch.Tensor) -> Array:
        """A device tensor's values once the device has made them."""
        self.hook.synchronize()
        return np.asarray(tensor.detach().to("cpu").double().numpy())


def to_torch(array: NDArray[Any]) -> torch.Tensor:
    """The same memory as a tensor. Torch's own stub leaves the array's type open."""
    import torch

    return torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]


def require(condition: object, message: str) -> None:
    """Fail the case with ``message`` unless ``condition``."""
    if not condition:
        raise CheckFailedError(message)


@contextmanager
def raising_only(right: type[Exception], what: str) -> Generator[None]:
    """Lets ``right`` through; fails the case, which did ``what``, for any other exception."""
    try:
        yield
    except right:
        raise
    except Exception as error:  # a backend's own code: whatever else it raises is the failure
        raise CheckFailedError(f"{what} raised {type(error).__name__}: {error}; right is {right.__name__}") from error


def plane_bytes(bench: Bench, cache: KVCache) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    """A copy of all planes on the host, uint8 ``[num_blocks, nbytes]`` each."""
    bench.hook.synchronize()
    return [np.asarray(plane.detach().to("cpu", copy=True).numpy()) for plane in cache.planes]
