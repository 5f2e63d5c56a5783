"""The header of a GGUF file: metadata and where each tensor lies. The tensors themselves are not read.

Vocabulary and merges are skipped, which is why this takes milliseconds where a full reader takes seconds.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from baseboard.contract import ModelLoadError

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_ALIGNMENT: Final = 32

#: Codes of the value types: struct formats of the scalars, and the two that have a length.
_SCALARS: Final = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor lies in the file, and how it is encoded."""

    name: str
    shape: tuple[int, ...]  #: slowest dimension first
    encoding: int  #: a ``gguf.GGMLQuantizationType``
    start: int  #: bytes from the beginning of the file
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What a GGUF file says of itself."""

    path: Path
    metadata: Mapping[str, Any]  #: scalars, strings and numeric arrays; of an array of strings its length
    tensors: tuple[GGUFTensor, ...]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def num_bytes(self) -> int:
        """Size of a whole file: the end of its last tensor."""
        return max((tensor.start + tensor.nbytes for tensor in self.tensors), default=0)

    @staticmethod
    def read(path: Path) -> GGUFHeader:
        """Raises ``ModelLoadError`` when the file is no GGUF file, or is cut short within its header."""
        with path.open("rb") as stream:
            magic = stream.read(4)
            if magic != _MAGIC:
                raise ModelLoadError(
                    f"{path} is no GGUF file: it begins with {magic!r}, not {_MAGIC!r}; "
                    f"for safetensors weights name the folder they are in"
                )
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                try:
                    return _parse(path, _Cursor(content))
                except (struct.error, OverflowError, ValueError, KeyError) as error:
                    size = path.stat().st_size
                    raise ModelLoadError(
                        f"{path} cannot be read as GGUF: its header ends or breaks within its {size} bytes ({error})"
                    ) from error


class _Cursor:
    """Reads values one after the other."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self.offset = len(_MAGIC)

    def scalars(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{layout}", self._content, self.offset)
        self.offset += struct.calcsize(f"<{layout}")
        return values

    def skip_string(self) -> None:
        self.offset += 8 + struct.unpack_from("<Q", self._content, self.offset)[0]

    def string(self) -> str:
        begin = self.offset + 8
        self.skip_string()
        if self.offset > len(self._content):
            raise ValueError(f"a string ends at byte {self.offset}")
        return self._content[begin : self.offset].decode("utf-8")

    def value(self, code: int) -> Any:
        if code == _STRING:
            return self.string()
        if code == _ARRAY:
            element, count = self.scalars("IQ")
            return self._array(element, count)
        return self.scalars(_SCALARS[code])[0]

    def _array(self, element: int, count: int) -> Any:
        if element in _SCALARS:
            return self.scalars(f"{count}{_SCALARS[element]}")
        if element != _STRING:
            raise ValueError(f"an array of type {element}")
        for _ in range(count):
            self.skip_string()
        return count


def _parse(path: Path, cursor: _Cursor) -> GGUFHeader:
    version, num_tensors, num_entries = cursor.scalars("IQQ")
    if version not in _VERSIONS:
        raise ValueError(f"version {version}, known are {_VERSIONS}")
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalars("I")[0])
    entries: list[tuple[str, tuple[int, ...], int, int]] = []
    for _ in range(num_tensors):
        name = cursor.string()
        shape = cursor.scalars(f"{cursor.scalars('I')[0]}Q")[::-1]
        encoding, offset = cursor.scalars("IQ")
        entries.append((name, shape, encoding, offset))
    alignment = int(metadata.get("general.alignment", _ALIGNMENT))
    data_start = -(-cursor.offset // alignment) * alignment
    tensors = (GGUFTensor(n, s, e, data_start + offset, _num_bytes(s, e)) for n, s, e, offset in entries)
    return GGUFHeader(path, metadata, tuple(tensors))


def _num_bytes(shape: tuple[int, ...], encoding: int) -> int:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block_elements, block_nbytes = GGML_QUANT_SIZES[GGMLQuantizationType(encoding)]
    return math.prod(shape) // block_elements * block_nbytes
