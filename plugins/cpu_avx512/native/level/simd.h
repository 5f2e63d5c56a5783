// Vectors of the level that this translation unit is compiled for: BB_LEVEL 1 has 8 lanes, the others have 16.
// Everything is private to the translation unit.
#ifndef BASEBOARD_CPU_SIMD_H
#define BASEBOARD_CPU_SIMD_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "../kernels.h"

#define BB_INLINE inline __attribute__((always_inline))
#define BB_UNROLL _Pragma("GCC unroll 32")

namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kLog2e = 1.44269504088896340736f;

#if BB_LEVEL >= 2

using Floats = __m512;
using Ints = __m512i;
using Lanes = __mmask16;
constexpr int kLanes = 16;

BB_INLINE Floats zero() { return _mm512_setzero_ps(); }
BB_INLINE Floats all(float x) { return _mm512_set1_ps(x); }
BB_INLINE Floats load(const float *p) { return _mm512_loadu_ps(p); }
BB_INLINE void store(float *p, Floats x) { _mm512_storeu_ps(p, x); }
BB_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
BB_INLINE Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
BB_INLINE float highest(Floats x) { return _mm512_reduce_max_ps(x); }
BB_INLINE float total(Floats x) { return _mm512_reduce_add_ps(x); }
BB_INLINE float lowest_lane(Floats x) { return _mm512_cvtss_f32(x); }
BB_INLINE Floats magnitude(Floats x) { return _mm512_abs_ps(x); }
BB_INLINE Floats nearest(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
BB_INLINE Floats scale_by_power(Floats x, Floats power) { return _mm512_scalef_ps(x, power); }
BB_INLINE Ints to_ints(Floats x) { return _mm512_cvtps_epi32(x); }
BB_INLINE Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }

// Lanes [begin, end), as far as they exist.
BB_INLINE Lanes lanes(int begin, int end) {
  const uint32_t below_end = end >= 16 ? 0xffffu : end <= 0 ? 0u : (1u << end) - 1;
  const uint32_t below_begin = begin >= 16 ? 0xffffu : begin <= 0 ? 0u : (1u << begin) - 1;
  return Lanes(below_end & ~below_begin);
}
BB_INLINE Floats choose(Lanes m, Floats yes, Floats no) { return _mm512_mask_blend_ps(m, no, yes); }
BB_INLINE Lanes less(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }

BB_INLINE Floats from_bfloat16(const void *p) {
  const __m256i half = _mm256_loadu_si256(static_cast<const __m256i *>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
BB_INLINE Floats from_float16(const void *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i *>(p)));
}
BB_INLINE void to_float16(void *p, Floats x) {
  _mm256_storeu_si256(static_cast<__m256i *>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
BB_INLINE void to_int16(void *p, Ints x) { _mm256_storeu_si256(static_cast<__m256i *>(p), _mm512_cvtepi32_epi16(x)); }
BB_INLINE void to_bfloat16(void *p, Floats x) {
#if BB_LEVEL >= 4
  _mm256_storeu_si256(static_cast<__m256i *>(p), (__m256i)_mm512_cvtneps_pbh(x));
#else
  const Ints bits = _mm512_castps_si512(x);
  const Ints odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const Ints rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const Lanes nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const Ints safe = _mm512_mask_blend_epi32(nan, rounded, _mm512_set1_epi32(0x7fc00000));
  _mm256_storeu_si256(static_cast<__m256i *>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(safe, 16)));
#endif
}

#else  // AVX2

using Floats = __m256;
using Ints = __m256i;
using Lanes = __m256;
constexpr int kLanes = 8;

BB_INLINE Floats zero() { return _mm256_setzero_ps(); }
BB_INLINE Floats all(float x) { return _mm256_set1_ps(x); }
BB_INLINE Floats load(const float *p) { return _mm256_loadu_ps(p); }
BB_INLINE void store(float *p, Floats x) { _mm256_storeu_ps(p, x); }
BB_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
BB_INLINE Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
BB_INLINE float highest(Floats x) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
BB_INLINE float total(Floats x) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
BB_INLINE float lowest_lane(Floats x) { return _mm256_cvtss_f32(x); }
BB_INLINE Floats magnitude(Floats x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
BB_INLINE Floats nearest(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// In two steps, so that results down to the smallest denormal come out.
BB_INLINE Floats scale_by_power(Floats x, Floats power) {
  const Ints n = _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(power, all(250.0f)), all(-250.0f)));
  const Ints half = _mm256_srai_epi32(n, 1), rest = _mm256_sub_epi32(n, half), bias = _mm256_set1_epi32(127);
  const Floats a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const Floats b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(x, a), b);
}
BB_INLINE Ints to_ints(Floats x) { return _mm256_cvtps_epi32(x); }
BB_INLINE Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }

BB_INLINE Lanes lanes(int begin, int end) {
  const Ints index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const Ints from = _mm256_cmpgt_epi32(index, _mm256_set1_epi32(begin - 1));
  return _mm256_castsi256_ps(_mm256_and_si256(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), index)));
}
BB_INLINE Floats choose(Lanes m, Floats yes, Floats no) { return _mm256_blendv_ps(no, yes, m); }
BB_INLINE Lanes less(Floats a, Floats b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }

BB_INLINE Floats from_bfloat16(const void *p) {
  const __m128i half = _mm_loadu_si128(static_cast<const __m128i *>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
BB_INLINE Floats from_float16(const void *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i *>(p)));
}
BB_INLINE void to_float16(void *p, Floats x) {
  _mm_storeu_si128(static_cast<__m128i *>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
BB_INLINE void store_low_halves(void *p, Ints x) {  // of values that fit into 16 bits, signed or not
  const Ints packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_and_si256(x, _mm256_set1_epi32(0xffff)), x), 8);
  _mm_storeu_si128(static_cast<__m128i *>(p), _mm256_castsi256_si128(packed));
}
BB_INLINE void to_int16(void *p, Ints x) { store_low_halves(p, x); }
BB_INLINE void to_bfloat16(void *p, Floats x) {
  const Ints bits = _mm256_castps_si256(x);
  const Ints odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const Ints rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const Ints nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const Ints safe = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan);
  store_low_halves(p, _mm256_srli_epi32(safe, 16));
}

#endif

// Rows of queries, keys, values and results in the model's dtype. Head sizes are multiples of 8, not of 16: the last
// eight elements of a row go by half a vector.
BB_INLINE int64_t element_size(int32_t dtype) { return dtype == BB_FLOAT32 ? 4 : 2; }

BB_INLINE float float_of(const char *p, int32_t dtype) {
  if (dtype == BB_FLOAT32) {
    float x;
    memcpy(&x, p, 4);
    return x;
  }
  uint16_t half;
  memcpy(&half, p, 2);
  if (dtype == BB_FLOAT16) return _cvtsh_ss(half);
  const uint32_t bits = uint32_t(half) << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

BB_INLINE Floats load_as(const char *p, int32_t dtype) {
  if (dtype == BB_FLOAT32) return load(reinterpret_cast<const float *>(p));
  return dtype == BB_BFLOAT16 ? from_bfloat16(p) : from_float16(p);
}

BB_INLINE void store_as(char *p, int32_t dtype, Floats x) {
  if (dtype == BB_FLOAT32)
    store(reinterpret_cast<float *>(p), x);
  else if (dtype == BB_BFLOAT16)
    to_bfloat16(p, x);
  else
    to_float16(p, x);
}

BB_INLINE void load_row(float *row, const char *p, int32_t dtype, int64_t count) {
  const int64_t size = element_size(dtype);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(row + i, load_as(p + i * size, dtype));
  for (; i < count; ++i) row[i] = float_of(p + i * size, dtype);
}

BB_INLINE void store_row(char *p, const float *row, int32_t dtype, int64_t count) {
  const int64_t size = element_size(dtype);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store_as(p + i * size, dtype, load(row + i));
  if (i < count) {
    float rest[kLanes] = {};
    char packed[kLanes * 4];
    memcpy(rest, row + i, size_t(count - i) * 4);
    store_as(packed, dtype, load(rest));
    memcpy(p + i * size, packed, size_t((count - i) * size));
  }
}

// 2^x to within two units in the last place; exactly 0 for -inf; NaN for NaN. |x - round(x)| <= 1/2, where the
// polynomial is a minimax one.
BB_INLINE Floats exp2_of(Floats x) {
#if BB_LEVEL < 2
  // -inf less its rounded self is NaN. VSCALEF makes 0 of that, AVX2 has nothing like it.
  x = max(all(-300.0f), x);
#endif
  const Floats whole = nearest(x), f = x - whole;
  Floats p = all(1.535336188319500e-4f);
  p = fma(p, f, all(1.339887440266574e-3f));
  p = fma(p, f, all(9.618437357674640e-3f));
  p = fma(p, f, all(5.550332471162809e-2f));
  p = fma(p, f, all(2.402264791363012e-1f));
  p = fma(p, f, all(6.931472028550421e-1f));
  p = fma(p, f, all(1.0f));
  return scale_by_power(p, whole);
}

// 2^x to within 3e-6 of it, for results that are rounded to 8 bits; otherwise as exp2_of.
BB_INLINE Floats exp2_coarse(Floats x) {
#if BB_LEVEL < 2
  x = max(all(-300.0f), x);
#endif
  const Floats whole = nearest(x), f = x - whole;
  Floats p = all(9.570101911e-3f);
  p = fma(p, f, all(5.591786032e-2f));
  p = fma(p, f, all(2.402474483e-1f));
  p = fma(p, f, all(6.931218147e-1f));
  p = fma(p, f, all(9.999992614e-1f));
  return scale_by_power(p, whole);
}

// tanh: a polynomial near 0, where the quotient would lose its digits.
BB_INLINE Floats tanh_of(Floats x) {
  const Floats z = x * x;
  Floats p = all(-5.70498872745e-3f);
  p = fma(p, z, all(2.06390887954e-2f));
  p = fma(p, z, all(-5.37397155531e-2f));
  p = fma(p, z, all(1.33314422036e-1f));
  p = fma(p, z, all(-3.33332819422e-1f));
  const Floats small = fma(p * z, x, x);
  const Floats clipped = max(all(-20.0f), all(0.0f) - max(all(-20.0f), all(0.0f) - x));  // NaN stays out of exp2
  const Floats large = all(1.0f) - all(2.0f) / (exp2_of(clipped * all(2.0f * kLog2e)) + all(1.0f));
  return choose(less(magnitude(x), all(0.625f)), small, large);
}

}  // namespace
#endif
