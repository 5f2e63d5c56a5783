"""Plugins that are not installed here are left out, and that is said."""

from __future__ import annotations

from importlib.util import find_spec

_MISSING = [name for name in ("cpu_avx512",) if find_spec(f"baseboard_{name}") is None]

collect_ignore = _MISSING


def pytest_report_header() -> list[str]:
    return [f"tests/plugins/{name}: not collected, its plugin is not installed (no C++ compiler?)" for name in _MISSING]
