// Small operators in one pass over their rows, in float32 whatever the dtype.
#ifndef BASEBOARD_CPU_OPERATORS_H
#define BASEBOARD_CPU_OPERATORS_H

#include "simd.h"

namespace {

// A vector of a row; the end of a row goes through a padded copy.
BB_INLINE Floats load_some(const char *p, int32_t dtype, int64_t left) {
  if (left >= kLanes) return load_as(p, dtype);
  alignas(64) char padded[kLanes * 4] = {};
  memcpy(padded, p, size_t(left * element_size(dtype)));
  return load_as(padded, dtype);
}

BB_INLINE void store_some(char *p, int32_t dtype, Floats x, int64_t left) {
  if (left >= kLanes) return store_as(p, dtype, x);
  alignas(64) char padded[kLanes * 4];
  store_as(padded, dtype, x);
  memcpy(p, padded, size_t(left * element_size(dtype)));
}

// y = x / sqrt(mean(x^2) + eps) * weight; with a residual, x + residual takes its place first. As the models do it, the
// sum is rounded to the dtype before it is normalised, and the normalised row before it is weighed.
BB_INLINE void normalise_row(const bb_norm_args &a, int32_t dtype, const char *x, char *residual, char *y) {
  const int64_t bytes = element_size(dtype);
  Floats squares = zero();
  for (int64_t i = 0; i < a.size; i += kLanes) {
    Floats v = load_some(x + i * bytes, dtype, a.size - i);
    if (residual) {
      store_some(residual + i * bytes, dtype, v + load_some(residual + i * bytes, dtype, a.size - i), a.size - i);
      v = load_some(residual + i * bytes, dtype, a.size - i);
    }
    squares = fma(v, v, squares);
  }
  const Floats factor = all(1.0f / __builtin_sqrtf(total(squares) / float(a.size) + a.eps));
  const char *const source = residual ? residual : x;
  const char *const weight = static_cast<const char *>(a.weight);
  alignas(64) char rounded[kLanes * 4];
  for (int64_t i = 0; i < a.size; i += kLanes) {
    store_as(rounded, dtype, load_some(source + i * bytes, dtype, a.size - i) * factor);
    const Floats w = load_some(weight + i * bytes, dtype, a.size - i);
    store_some(y + i * bytes, dtype, load_as(rounded, dtype) * w, a.size - i);
  }
}

void rms_norm(const bb_norm_args *args, int64_t begin, int64_t end) {
  const bb_norm_args &a = *args;
  const int64_t bytes = element_size(a.dtype);
  for (int64_t r = begin; r < end; ++r) {
    char *const residual = a.residual ? static_cast<char *>(a.residual) + r * a.residual_stride * bytes : nullptr;
    normalise_row(a, a.dtype, static_cast<const char *>(a.x) + r * a.x_stride * bytes, residual,
                  static_cast<char *>(a.y) + r * a.y_stride * bytes);
  }
}

// y = gate / (1 + exp(-gate)) * up
void silu_and_mul(const bb_gate_args *args, int64_t begin, int64_t end) {
  const bb_gate_args &a = *args;
  const int64_t bytes = element_size(a.dtype);
  alignas(64) char rounded[kLanes * 4];
  for (int64_t r = begin; r < end; ++r) {
    const char *const gate = static_cast<const char *>(a.x) + r * a.x_stride * bytes;
    const char *const up = gate + a.size * bytes;
    char *const y = static_cast<char *>(a.y) + r * a.y_stride * bytes;
    for (int64_t i = 0; i < a.size; i += kLanes) {
      const Floats g = load_some(gate + i * bytes, a.dtype, a.size - i);
      store_as(rounded, a.dtype, g / (all(1.0f) + exp2_of(g * all(-kLog2e))));
      const Floats u = load_some(up + i * bytes, a.dtype, a.size - i);
      store_some(y + i * bytes, a.dtype, load_as(rounded, a.dtype) * u, a.size - i);
    }
  }
}

// Turns pairs (x, y) by an angle: halves of a head are the pairs, or neighbours are.
BB_INLINE void turn_head(char *head, const float *cosines, const float *sines, const bb_rotary_args &a) {
  const int half = a.rotary_size / 2;
  const int64_t bytes = element_size(a.dtype);
  int i = 0;
  if (!a.interleaved) {
    for (; i + kLanes <= half; i += kLanes) {
      char *const p = head + i * bytes, *const q = p + half * bytes;
      const Floats x = load_as(p, a.dtype), y = load_as(q, a.dtype), c = load(cosines + i), s = load(sines + i);
      store_as(p, a.dtype, x * c - y * s);
      store_as(q, a.dtype, y * c + x * s);
    }
  }
  const int64_t step = a.interleaved ? 2 : 1, other = a.interleaved ? 1 : half;
  for (; i < half; ++i) {
    char *const p = head + i * step * bytes, *const q = p + other * bytes;
    const float x = float_of(p, a.dtype), y = float_of(q, a.dtype);
    store_some(p, a.dtype, all(x * cosines[i] - y * sines[i]), 1);
    store_some(q, a.dtype, all(y * cosines[i] + x * sines[i]), 1);
  }
}

void rotary_embedding(const bb_rotary_args *args, int64_t begin, int64_t end) {
  const bb_rotary_args &a = *args;
  const int64_t bytes = element_size(a.dtype);
  for (int64_t t = begin; t < end; ++t) {
    const float *const cosines = a.table + a.positions[t] * a.rotary_size, *const sines = cosines + a.rotary_size / 2;
    for (int h = 0; h < a.heads; ++h)
      turn_head(static_cast<char *>(a.query) + (t * a.query_token + h * a.query_head) * bytes, cosines, sines, a);
    for (int h = 0; h < a.kv_heads; ++h)
      turn_head(static_cast<char *>(a.key) + (t * a.key_token + h * a.key_head) * bytes, cosines, sines, a);
  }
}

}  // namespace
#endif
