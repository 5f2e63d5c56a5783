"""Which of the core's modules a plugin's source imports: read from its text, nothing is run."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: The two packages of the core that a plugin may import.
ALLOWED: Final = ("baseboard.contract", "baseboard.kit")


def private_imports(entry_point: str) -> list[str]:
    """``"file:line: imports baseboard.engine"`` for each import of the core that a plugin may not have."""
    module = entry_point.partition(":")[0]
    own = module if module.startswith("baseboard.") else module.partition(".")[0]
    found: list[str] = []
    for path, package in _sources(own):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for line, name in _imports(tree, package):
            if _forbidden(name, own):
                found.append(f"{path.name}:{line}: imports {name}")
    return found


def _forbidden(name: str, own: str) -> bool:
    if name.partition(".")[0] != "baseboard":
        return False
    return not any(name == allowed or name.startswith(f"{allowed}.") for allowed in (*ALLOWED, own))


def _sources(module: str) -> Iterator[tuple[Path, str]]:
    """Every Python file of a package or module, and the package that its relative imports start from."""
    spec = importlib.util.find_spec(module)
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        if spec.origin is not None and spec.origin.endswith(".py"):
            yield Path(spec.origin), module.rpartition(".")[0]
        return
    for root in map(Path, spec.submodule_search_locations):
        for path in sorted(root.rglob("*.py")):
            inside = path.relative_to(root).parent.parts
            yield path, ".".join((module, *inside))


def _imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(package, node.level, node.module)
            # ``from baseboard import kit`` imports baseboard.kit; ``from baseboard import LLM`` does not.
            if base == "baseboard":
                yield from ((node.lineno, f"baseboard.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, base


def _base(package: str, level: int, module: str | None) -> str:
    if not level:
        return module or ""
    parts = package.split(".")
    kept = parts[: len(parts) - level + 1]
    return ".".join([*kept, *([module] if module else [])])
