from __future__ import annotations

import pytest

from core.simulation.watch import watch_every_step


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of every simulation in these tests is checked, whatever a plugin does."""
    watch_every_step(monkeypatch)
