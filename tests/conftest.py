"""What holds for every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Ctrl-C works as on a terminal: whoever starts a job in the background hands it down as ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
