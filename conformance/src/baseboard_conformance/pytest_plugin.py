"""The pytest door: ``pytest --pyargs baseboard_conformance --cts-backend NAME``.

pytest loads this module in every run of an environment that has the suite installed. Without ``--cts-backend`` it
adds its options and does nothing else; so nothing of the suite is imported at its top.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from baseboard_conformance.pytest_session import ConformanceSession

_HERE: Final = Path(__file__).parent
SESSION: Final[pytest.StashKey[ConformanceSession]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("baseboard conformance")
    group.addoption("--cts-backend", metavar="NAME", help="run the conformance suite against this backend")
    group.addoption("--cts-profile", default="core", metavar="PROFILE", help="smoke, core or full (default: core)")
    group.addoption("--cts-spec", default="latest", metavar="VERSION", help="version of the contract (default: latest)")
    group.addoption("--cts-seed", default="0", metavar="N", help="seed of all inputs, or random (default: 0)")
    group.addoption("--cts-cases", action="append", metavar="GLOB", help="only cases whose ids match; may be repeated")
    group.addoption("--cts-waivers", metavar="FILE", help="file of known failures")
    group.addoption("--cts-timeout", type=_seconds, metavar="S", help="seconds for each case (default: the case's own)")
    group.addoption("--cts-workers", type=_workers, default=1, metavar="N", help="processes that do cases at once")
    group.addoption("--cts-allow", default="", metavar="partial", help="exit with 0 when cases are waived or left out")
    group.addoption("--cts-report-dir", metavar="DIR", help="write the report there")


def _seconds(text: str) -> float:
    value = float(text)
    if not value >= 0.1:
        raise argparse.ArgumentTypeError(f"{text} is less than 0.1 seconds")
    return value


def _workers(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 64:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to 64")
    return value


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--cts-backend") is None:
        return
    from baseboard_conformance import pytest_session

    session = pytest_session.session_of(config)
    config.stash[SESSION] = session
    config.pluginmanager.register(session, "baseboard conformance session")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The suite's own module holds no tests for anybody who did not ask for them."""
    inside = collection_path == _HERE or _HERE in collection_path.parents
    return True if inside and config.getoption("--cts-backend") is None else None


def pytest_generate_tests(metafunc: Any) -> None:
    if "conformance_case" in metafunc.fixturenames:
        cases = metafunc.config.stash[SESSION].cases
        metafunc.parametrize("conformance_case", cases, ids=[case.id for case in cases])
