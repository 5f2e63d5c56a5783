"""A plugin whose vendor library is missing, as on a machine without the driver."""

from __future__ import annotations

import a_vendor_library_that_nobody_has  # noqa: F401 - its absence is the point
