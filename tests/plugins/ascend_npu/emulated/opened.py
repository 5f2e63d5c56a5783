"""Opens the backend as the core does."""

from __future__ import annotations

from typing import Any

import baseboard_ascend_npu as plugin


def open_backend(**options: Any) -> Any:
    """The backend of the stand-in's one device."""
    (device,) = plugin.probe_devices()
    return plugin.open_backend(device, options)
