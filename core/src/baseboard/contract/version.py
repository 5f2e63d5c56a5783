"""The version of the plugin contract."""

from __future__ import annotations

from typing import Final

#: ``major.minor``. A new optional hook, hook argument or data field raises the minor; a removal raises the major.
API_VERSION: Final = "1.0"
