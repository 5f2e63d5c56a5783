from __future__ import annotations

from pathlib import Path

import pytest

from core.discovery.hosts import Host, install

PROJECTS = Path(__file__).parents[2] / "plugins" / "broken"


@pytest.fixture
def host(tmp_path):
    """``host("import_error", ...)``: a host with these fixture projects installed."""

    def make(*names):
        for name in names:
            install(PROJECTS / name, tmp_path)
        return Host(tmp_path)

    return make
