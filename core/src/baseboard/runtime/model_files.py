"""Checks of model files that find what is missing or cut short before a library stumbles over it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Final

from baseboard.contract import ModelLoadError
from baseboard.runtime.model_gguf import GGUFHeader

_CONFIG: Final = "config.json"
_INDEXES: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHTS: Final = ("*.safetensors", "pytorch_model*.bin")

#: No header of a real model is longer; a longer one is a length read from a file that is something else.
_MAX_HEADER_NBYTES: Final = 100_000_000


def check_folder(folder: Path) -> None:
    """Raise ``ModelLoadError`` unless the folder holds a readable config.json and whole weights."""
    config = folder / _CONFIG
    if not config.is_file():
        ggufs = sorted(file.name for file in folder.glob("*.gguf"))
        way_out = f"name the GGUF file itself: {folder / ggufs[0]}" if ggufs else "is it a model's folder?"
        raise ModelLoadError(f"the folder {folder} has no {_CONFIG}; {way_out}")
    if "model_type" not in _read_json(config):
        raise ModelLoadError(f"{config} names no model_type, so it is not the configuration of a model")
    for name in _INDEXES:
        if (folder / name).is_file():
            _check_shards(folder / name)
    weights = sorted(file for pattern in _WEIGHTS for file in folder.glob(pattern))
    if not weights:
        raise ModelLoadError(f"the folder {folder} has a {_CONFIG} but no weights: no .safetensors and no .bin file")
    for file in weights:
        if file.suffix == ".safetensors":
            _check_safetensors(file)


def check_gguf(file: Path) -> None:
    """Raise ``ModelLoadError`` unless the file is a GGUF file with all its tensors."""
    header = GGUFHeader.read(file)
    have, need = file.stat().st_size, header.num_bytes
    if have < need:
        raise ModelLoadError(f"{file} is cut short: it has {have} bytes, its tensors need {need}; fetch it again")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{file} holds a JSON {type(content).__name__}, not an object")
    return content


def _check_shards(index: Path) -> None:
    named = _read_json(index).get("weight_map")
    if not isinstance(named, dict):
        raise ModelLoadError(f"{index} has no weight_map")
    missing = sorted({str(shard) for shard in named.values() if not (index.parent / str(shard)).is_file()})
    if missing:
        raise ModelLoadError(f"{index} names files that are not there: {', '.join(missing)}; fetch them again")


def _check_safetensors(file: Path) -> None:
    """A safetensors file: uint64 length of the header, the header (JSON), then the tensors' bytes."""
    have = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= _MAX_HEADER_NBYTES:
            raise ModelLoadError(f"{file} is no safetensors file: it has {have} bytes and no valid header")
        if have < 8 + length:
            raise ModelLoadError(f"{file} is cut short: it has {have} bytes, its header alone needs {8 + length}")
        header = stream.read(length)
    try:
        entries: dict[str, Any] = json.loads(header)
        ends = [int(entry["data_offsets"][1]) for name, entry in entries.items() if name != "__metadata__"]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ModelLoadError(f"{file} is no safetensors file: its header cannot be read ({error})") from error
    need = 8 + length + max(ends, default=0)
    if have < need:
        raise ModelLoadError(f"{file} is cut short: it has {have} bytes, its tensors need {need}; fetch it again")
