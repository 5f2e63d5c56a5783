"""Instruction-set levels that the kernels are compiled for."""

from __future__ import annotations

from enum import IntEnum


class Level(IntEnum):
    """Lowest first; the numbers are those of ``bb_level`` in the library."""

    none = 0
    avx2 = 1
    avx512 = 2
    avx512_vnni = 3
    avx512_bf16 = 4
    avx512_amx = 5

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Levels that can be asked for."""
        return tuple(level.name for level in cls if level is not cls.none)

    def missing(self) -> str:
        """What the CPU would need for the levels above this one; empty at the highest."""
        return "; ".join(f"{level.name} needs {_NEEDS[level]}" for level in Level if level > self)


_NEEDS = {
    Level.avx2: "AVX2, FMA and F16C",
    Level.avx512: "AVX-512 F, BW, DQ and VL",
    Level.avx512_vnni: "AVX-512 VNNI",
    Level.avx512_bf16: "AVX-512 BF16",
    Level.avx512_amx: "AMX with BF16, and the system's permission to use its tiles",
}
