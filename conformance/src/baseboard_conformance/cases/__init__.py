"""Every case, by group. Loading this package loads no torch: listing cases is cheap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from baseboard_conformance.case import Case
from baseboard_conformance.cases import (
    allocation,
    attention,
    buffers,
    copy,
    graphs,
    memory,
    operators,
    poison,
    refusals,
    rules,
    swap,
    sync,
    traces,
    zero,
)

_GROUPS = (
    attention,
    poison,
    buffers,
    allocation,
    copy,
    swap,
    zero,
    memory,
    sync,
    refusals,
    rules,
    operators,
    graphs,
    traces,
)


def all_cases() -> Mapping[str, Case]:
    """By id, in the order they run. Two cases with one id are a mistake of the suite."""
    found: dict[str, Case] = {}
    for case in _cases():
        assert case.id not in found, f"two cases have the id {case.id}"
        found[case.id] = case
    return found


def _cases() -> Iterator[Case]:
    for group in _GROUPS:
        yield from group.cases()
