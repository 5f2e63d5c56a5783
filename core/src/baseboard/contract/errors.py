"""Every error that Baseboard raises on purpose.

::

    BaseboardError
    ├── BackendUnavailable    the backend cannot be used here: not found, not loaded, no device
    ├── Unsupported           the backend or the core refuses a model or an option; has ``reasons``
    ├── ContractError         a plugin or an executor broke the contract
    ├── BackendFault          the device is lost: close the backend
    ├── ModelLoadError        the model cannot be found or read
    ├── MemoryShortage        the memory does not suffice for one sequence
    └── RequestRejected       this request can never run (also a ``ValueError``)

A bad argument to a backend hook is a plain :class:`ValueError`, raised before anything is enqueued.
Exhausted memory is ``torch.OutOfMemoryError`` for device and host pools alike.
"""

from __future__ import annotations

from collections.abc import Sequence


class BaseboardError(Exception):
    """Root of the tree: catch this to catch everything Baseboard raises on purpose."""


class BackendUnavailable(BaseboardError):
    """A backend cannot be used; the message says why and what to do."""


class Unsupported(BaseboardError):
    """Something was asked for that is not supported.

    ``reasons`` holds one sentence for each obstacle: what was asked, what the limit is.
    """

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons: tuple[str, ...] = tuple(reasons)
        super().__init__("; ".join(self.reasons))


class ContractError(BaseboardError):
    """A plugin or executor did something the contract forbids; the message names it."""


class BackendFault(BaseboardError):
    """The device failed in a way it cannot recover from: close the backend, drop its tensors."""


class ModelLoadError(BaseboardError):
    """A model could not be found, read or understood."""


class MemoryShortage(BaseboardError):
    """The memory left after weights and activations does not hold one sequence."""


class RequestRejected(BaseboardError, ValueError):
    """A request that can never run as given: the message names value, limit and way out."""
