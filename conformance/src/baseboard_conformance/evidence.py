"""A failing problem as arrays in one ``.npz`` file, and back."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from baseboard.contract import AttentionSpec, KVCacheSpec
from baseboard_conformance.exits import UsageError
from baseboard_conformance.layouts import Layout, Row
from baseboard_conformance.oracle import Tensors
from baseboard_conformance.problem import Problem
from baseboard_conformance.scenario import Geometry

_FORMAT: Final = 1


def pack(problem: Problem, content: float | None) -> dict[str, NDArray[Any]]:
    """All that a replay needs; ``content`` is what the pool held before."""
    facts = {
        "format": _FORMAT,
        "geometry": asdict(problem.geometry),
        # JSON knows no NaN.
        "content": None if content is None else str(content),
    }
    arrays: dict[str, NDArray[Any]] = {"problem": np.array(json.dumps(facts))}
    for index, (tensors, table) in enumerate(zip(problem.tensors, problem.tables, strict=True)):
        arrays[f"query{index}"], arrays[f"key{index}"] = tensors.query, tensors.key
        arrays[f"value{index}"], arrays[f"table{index}"] = tensors.value, table
    return arrays


def unpack(arrays: Mapping[str, NDArray[Any]]) -> tuple[Problem, float | None]:
    """The problem and the pool's content. Raises ``UsageError`` for what :func:`pack` did not make."""
    try:
        facts = json.loads(str(arrays["problem"]))
        if facts["format"] != _FORMAT:
            raise UsageError(f"the evidence has format {facts['format']}, this suite reads format {_FORMAT}")
        geometry = _geometry(facts["geometry"])
        count = range(len(geometry.layout.rows))
        tensors = tuple(Tensors(arrays[f"query{i}"], arrays[f"key{i}"], arrays[f"value{i}"]) for i in count)
        tables = tuple(arrays[f"table{i}"] for i in count)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"this is no evidence of a numeric case: {error}") from error
    content = facts["content"]
    return Problem(geometry, tensors, tables), None if content is None else float(content)


def _geometry(plain: dict[str, Any]) -> Geometry:
    attention = dict(plain["attention"])
    for name in ("alibi_slopes", "sinks"):
        attention[name] = None if attention[name] is None else tuple(attention[name])
    layout = Layout(tuple(Row(**row) for row in plain["layout"]["rows"]), plain["layout"]["shared_blocks"])
    return Geometry(AttentionSpec(**attention), KVCacheSpec(**plain["kv"]), layout, plain["causal"])


def save(path: Path, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
    """Write arrays, and which case of which run they come from."""
    named: dict[str, Any] = dict(arrays)
    np.savez_compressed(path, origin=np.array(json.dumps(dict(facts))), **named)


def load(path: Path) -> dict[str, NDArray[Any]]:
    """Raises ``UsageError`` when ``path`` is not such a file."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} cannot be read as evidence: {error}") from error


def origin(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Case, seed and backend that the evidence comes from. Raises ``UsageError``."""
    if "origin" not in arrays:
        raise UsageError("this file does not say which case it comes from: it was not written by this suite")
    return dict(json.loads(str(arrays["origin"])))
