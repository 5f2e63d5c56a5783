// From the scores of a tile to weights, row by row, with running maxima and sums (online softmax, base 2).
#ifndef BASEBOARD_CPU_SOFTMAX_H
#define BASEBOARD_CPU_SOFTMAX_H

#include "elements.h"

namespace {

// What turns a product into a logit. Logits are kept times log2(e), so that exp is 2^x.
struct Logits {
  float scale, softcap;  // softcap 0: none
  const float *slopes;   // of the item's heads, or null
  bool plain;            // no softcap, no slopes
};

// One row of the tile: keys [begin, end) of it are visible; key 0 lies `distance` after the query.
struct Row {
  int begin, end, width;  // width: keys of the tile, rounded up to a multiple of 16
  float distance, slope;
  const float *key_scales;  // [width] or null
  float query_unit;
};

BB_INLINE Floats indices() {
  alignas(64) static const float kIndices[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(kIndices);
}

BB_INLINE Floats logit(Floats x, const Logits &logits, const Row &row, int at) {
  if (row.key_scales) x = x * load(row.key_scales + at);
  if (logits.plain) return x * all(logits.scale * row.query_unit * kLog2e);
  x = x * all(logits.scale * row.query_unit);
  if (logits.softcap > 0.0f) x = all(logits.softcap) * tanh_of(x * all(1.0f / logits.softcap));
  x = fma(all(row.slope), indices() + all(row.distance + float(at)), x);
  return x * all(kLog2e);
}

// Weights as numbers that a product is taken with. Those of int16 need the row's largest first and stay floats till then.
BB_INLINE Floats weight_of(Floats x, const float *) { return exp2_of(x); }
BB_INLINE Floats weight_of(Floats x, const int16_t *) { return exp2_of(x); }
BB_INLINE Floats weight_of(Floats x, const uint16_t *) { return exp2_coarse(x); }
BB_INLINE void put(float *, float *x, int i, Floats weight) { store(x + i, weight); }
BB_INLINE void put(int16_t *, float *x, int i, Floats weight) { store(x + i, weight); }
BB_INLINE void put(uint16_t *to, float *, int i, Floats weight) { to_bfloat16(to + i, weight); }

// The first of three steps for a row of products: what is visible becomes logits, the rest of the vectors between -inf.
// Returns the row's largest. kRaw: products stay what they are, since logits are they times a positive factor.
template <bool kRaw>
BB_INLINE float logits_of(float *x, const Logits &logits, const Row &row) {
  Floats most = all(-kInfinity);
  for (int i = row.begin / kLanes * kLanes; i < row.end; i += kLanes) {
    const bool whole = i >= row.begin && i + kLanes <= row.end;
    Floats y = load(x + i);
    if (!kRaw) y = logit(y, logits, row, i);
    if (!whole) y = choose(lanes(row.begin - i, row.end - i), y, all(-kInfinity));
    if (!kRaw || !whole) store(x + i, y);
    most = max(most, y);
  }
  return highest(most);
}

// The second, for all rows: their running maxima, what is taken off their logits and by how much earlier sums shrink.
// `top`, `off`: [count], with room for a whole vector at the end.
BB_INLINE void raise_maxima(const float *top, float factor, int count, float *running, float *off, float *decay) {
  for (int r = 0; r < count; r += kLanes) {
    const Floats before = load(running + r), after = max(load(top + r) * all(factor), before);
    // A row that has seen nothing yet has no maximum to take off; then all its weights are 0 anyway.
    const Floats taken = choose(less(all(-kInfinity), after), after, zero());
    store(running + r, after);
    store(off + r, taken);
    store(decay + r, exp2_of(before - taken));
  }
}

// The third: weights 2^(factor x - off), 0 for what is not visible, and their sum. `to` is where the products are or
// before it.
template <class Number>
BB_INLINE float weights_of(float *x, Number *to, const Row &row, float factor, float off) {
  Floats sums = zero();
  int i = 0;
  for (; i < row.begin / kLanes * kLanes; i += kLanes) put(to, x, i, zero());
  for (; i < row.end; i += kLanes) {
    const Floats w = weight_of(fma(load(x + i), all(factor), all(-off)), to);
    put(to, x, i, w);
    sums = sums + w;
  }
  for (; i < row.width; i += kLanes) put(to, x, i, zero());
  return total(sums);
}

}  // namespace
#endif
