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

// Replaces a row of products by weights; what is not visible weighs exactly 0, whatever its product was.
BB_INLINE void weights_of(float *x, const Logits &logits, const Row &row, float &running, float &sum, float &decay) {
  Floats most = all(-kInfinity);
  const int first = row.begin / kLanes * kLanes;
  for (int i = first; i < row.end; i += kLanes) {
    const Floats y = choose(lanes(row.begin - i, row.end - i), logit(load(x + i), logits, row, i), all(-kInfinity));
    store(x + i, y);
    most = max(most, y);
  }
  const float before = running, top = highest(most);
  // A row that has seen nothing yet has no maximum to take off; then all its weights are 0 anyway.
  running = top > before ? top : before;
  const float off = running > -kInfinity ? running : 0.0f;
  decay = __builtin_exp2f(before - off);
  Floats sums = zero();
  for (int i = 0; i < first; i += kLanes) store(x + i, zero());
  int i = first;
  for (; i < row.end; i += kLanes) {
    const Floats w = exp2_of(load(x + i) - all(off));
    store(x + i, w);
    sums = sums + w;
  }
  for (; i < row.width; i += kLanes) store(x + i, zero());
  sum = sum * decay + total(sums);
}

}  // namespace
#endif
