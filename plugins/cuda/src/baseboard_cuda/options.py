"""What a user may choose about the backend, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from baseboard.contract import BackendUnavailable
from baseboard_cuda.tiles import TileTable, load_tiles, read_tiles

PREFIX: Final = "BASEBOARD_CUDA_"
_ALLOWED: Final[Mapping[str, tuple[str, ...]]] = {
    "fp8_scale": ("token_head", "tensor"),
    "attention": ("triton", "auto", "flashinfer", "varlen"),
}


@dataclass(frozen=True, slots=True)
class Options:
    """Of each that has certain values, the first is the default."""

    fp8_scale: str = "token_head"  #: what has a scale of its own where keys and values are stored in FP8
    attention: str = "triton"  #: the engine; ``auto`` takes another one where it fits
    tiles: Path | None = None  #: a file that ``baseboard_cuda.check.tune`` wrote; None: the one that is shipped

    def tile_table(self, shipped: str) -> TileTable:
        """The user's tiles, or those called ``shipped``. ``BackendUnavailable`` when the file is none of tiles."""
        if self.tiles is None:
            return load_tiles(shipped)
        try:
            return read_tiles(self.tiles)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackendUnavailable(
                f"tiles={str(self.tiles)!r} cannot be used ({error!r}): it must be a file that "
                f"python -m baseboard_cuda.check.tune has written"
            ) from error


def read_options(given: Mapping[str, Any], environment: Mapping[str, str]) -> Options:
    """What is ``given``, else what the environment has as ``BASEBOARD_CUDA_`` and the name in capitals.

    Raises ``BackendUnavailable`` for a name or a value that is not known.
    """
    names = [field.name for field in fields(Options)]
    variables = {name: environment.get(f"{PREFIX}{name.upper()}") for name in names}
    given = {name: value for name, value in variables.items() if value} | dict(given)
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise BackendUnavailable(f"the CUDA backend has no option {', '.join(unknown)}: it has {', '.join(names)}")
    for name, allowed in _ALLOWED.items():
        if name in given and given[name] not in allowed:
            raise BackendUnavailable(f"{name}={given[name]!r} is not known: it is one of {', '.join(allowed)}")
    tiles = given.get("tiles")
    return Options(**{**given, "tiles": None if tiles is None else Path(tiles)})
