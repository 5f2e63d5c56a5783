"""Number formats and functions that Triton lacks, or lacks on some GPU.

FP8 here is E4M3 without infinities: sign, 4 bits of exponent (bias 7), 3 of mantissa; the largest number is 448. GPUs
older than 8.9 have no instructions for it, so it is taken apart and put together with integers: the same bits on all.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

#: What :func:`from_e4m3` leaves out: its results are this much too small. Fold it into a scale.
E4M3_FACTOR: Final = tl.constexpr(256.0)
E4M3_MAX: Final = tl.constexpr(448.0)
LOG2_E: Final = tl.constexpr(1.4426950408889634)


@triton.jit
def from_e4m3(byte):
    """Bytes as float16, divided by 256, exactly: the exponent's bits are put where float16 has its own, unbiased."""
    wide = byte.to(tl.int16)
    bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    # 0x7F is the only code that is not a number; moved like the others it would be one.
    bits = tl.where((wide & 0x7F) == 0x7F, 0x7E00, bits).to(tl.int16)
    return bits.to(tl.float16, bitcast=True)


@triton.jit
def to_e4m3(x):
    """float32 to the nearest E4M3, ties to even, as uint8. Larger numbers become the largest; NaN stays NaN."""
    bits = x.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = tl.minimum(tl.abs(x), E4M3_MAX)
    size_bits = size.to(tl.int32, bitcast=True)
    # Normal numbers: round the mantissa from 23 bits to 3, then move the exponent's bias from 127 to 7.
    normal = ((size_bits + 0x7FFFF + ((size_bits >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 the steps are 2^-9 wide: adding 2^14 makes the hardware round to such a step.
    subnormal = (size + 16384.0).to(tl.int32, bitcast=True) & 0xFF
    code = tl.where(size < 0.015625, subnormal, normal)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    code = tl.where(is_nan, 0x7F, code)
    return (sign | code).to(tl.uint8)


@triton.jit
def exp_of_negative(x):
    """The exponential function of float32 up to zero, right to a unit or two in the last place.

    The hardware's power of two is as good as its argument, and a large argument has few bits after the point: so the
    whole part is split off, in two pieces of log 2 of which the first has bits to spare.
    """
    smallest = tl.where(x < -87.0, -87.0, x)  # below it the result is no normal number; NaN stays NaN
    whole = tl.floor(smallest * LOG2_E + 0.5)
    rest = (smallest - whole * 0.693359375) + whole * 2.12194440e-4
    return tl.where(x < -87.0, 0.0, tl.exp2(whole) * tl.exp2(rest * LOG2_E))


@triton.jit
def tanh(x):
    """The hyperbolic tangent of float32, right to a unit or two in the last place."""
    size = tl.abs(x)
    # Near zero a difference of exponentials has lost its last bits: there the Taylor series of tanh(x) / x in x^2.
    square = tl.minimum(size * size, 0.25)
    series = 1.0 + square * (
        -1 / 3
        + square
        * (
            2 / 15
            + square
            * (
                -17 / 315
                + square
                * (62 / 2835 + square * (-1382 / 155925 + square * (21844 / 6081075 + square * (-929569 / 638512875))))
            )
        )
    )
    e = tl.exp2(size * (-2.0 * LOG2_E))
    large = (1.0 - e) / (1.0 + e)
    result = tl.where(size < 0.5, size * series, large)
    return tl.where(x < 0, -result, result)
