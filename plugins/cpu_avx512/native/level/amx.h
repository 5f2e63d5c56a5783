// The two matrix products of attention on AMX tiles, for caches of bfloat16. Keys and values lie in the cache as the tile
// unit wants its second operand: pairs of elements side by side, and pairs of tokens.
//
//   tiles 0 to 3   sums, 16 rows x 16 columns: of a strip of rows with two columns, then of the next strip
//   tiles 4, 5     rows of the two strips: queries or weights, 32 at a time
//   tiles 6, 7     32 keys' or values' worth of two columns
#ifndef BASEBOARD_CPU_AMX_H
#define BASEBOARD_CPU_AMX_H

#include "products.h"

#if BB_LEVEL >= 5

namespace {

constexpr int kStrip = 16;  // rows of a tile
constexpr int kDepth = 32;  // products that one instruction adds to a sum

// Values of a tile of keys in runs of 32 tokens.
struct Runs {
  const char *values[bb::kTile / kDepth];
  const char *const *ahead;  // for each eight as many bytes that are read next, fetched meanwhile
  int count, eights;
  int64_t row_bytes;
};

// Four eights of values as one run of 32 tokens: where they lie, if they follow each other there, or in a copy. What is
// missing at the end of a tile is zero.
BB_INLINE const char *run_of_values(const Values &values, int first, char *copy) {
  const int64_t bytes = 4 * values.row_bytes;
  bool follow = first + 4 <= values.count;
  for (int i = 1; follow && i < 4; ++i) follow = values.eights[first + i] == values.eights[first] + i * bytes;
  if (follow) return values.eights[first];
  for (int i = 0; i < 4; ++i) {
    if (first + i < values.count)
      memcpy(copy + i * bytes, values.eights[first + i], size_t(bytes));
    else
      memset(copy + i * bytes, 0, size_t(bytes));
  }
  return copy;
}

BB_INLINE Runs runs_of(const Values &values, char *copy) {
  Runs runs{{}, values.ahead, (values.count + 3) / 4, values.count, values.row_bytes};
  for (int i = 0; i < runs.count; ++i, copy += kDepth / 2 * values.row_bytes)
    runs.values[i] = run_of_values(values, 4 * i, copy);
  return runs;
}

struct Bfloat16Tiles : FloatSums {
  static constexpr int kPair = 2, kBytes = 2, kDeep = kDepth, kBand = bb::kTileBand;
  using Number = uint16_t;
  // Copies lie behind the panels that may have been joined: of two bytes an element these take half of the room.
  static BB_INLINE Runs arranged(const Values &values, bb::Scratch &s) { return runs_of(values, s.panels + sizeof s.panels / 2); }
};

// What LDTILECFG reads.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// For a band of rows: two strips; the second may be empty, and then tiles 2, 3 and 5 are not used.
BB_INLINE void shape_strips(int rows) {
  const int first = rows < kStrip ? rows : kStrip, second = rows - first;
  TileShapes shapes;
  shapes.rows[0] = shapes.rows[1] = shapes.rows[4] = uint8_t(first);
  shapes.rows[2] = shapes.rows[3] = shapes.rows[5] = uint8_t(second ? second : 1);
  // GCC takes the tile loads for instructions that read no memory: what they are to read must have been stored.
  __asm__ volatile("" : : "r"(&shapes) : "memory");
  _tile_loadconfig(&shapes);
}

// Two columns of sums, taken from memory and put back. `stride`: bytes from row to row.
template <bool kBoth, bool kTwo>
BB_INLINE void load_sums(const float *first, const float *second, int64_t stride) {
  _tile_loadd(0, first, stride);
  if constexpr (kTwo) _tile_loadd(1, first + 16, stride);
  if constexpr (kBoth) _tile_loadd(2, second, stride);
  if constexpr (kBoth && kTwo) _tile_loadd(3, second + 16, stride);
}

template <bool kBoth, bool kTwo>
BB_INLINE void store_sums(float *first, float *second, int64_t stride) {
  _tile_stored(0, first, stride);
  if constexpr (kTwo) _tile_stored(1, first + 16, stride);
  if constexpr (kBoth) _tile_stored(2, second, stride);
  if constexpr (kBoth && kTwo) _tile_stored(3, second + 16, stride);
}

template <bool kBoth, bool kTwo>
BB_INLINE void clear_sums() {
  _tile_zero(0);
  if constexpr (kTwo) _tile_zero(1);
  if constexpr (kBoth) _tile_zero(2);
  if constexpr (kBoth && kTwo) _tile_zero(3);
}

// Adds the products of one or two strips of rows with one or two columns, 32 deep. Strides in bytes.
template <bool kBoth, bool kTwo>
BB_INLINE void add_products(const uint16_t *first, const uint16_t *second, int64_t row_stride, const char *left,
                            const char *right, int64_t stride) {
  _tile_loadd(6, left, stride);
  _tile_loadd(4, first, row_stride);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kBoth) {
    _tile_loadd(5, second, row_stride);
    _tile_dpbf16ps(2, 5, 6);
  }
  if constexpr (kTwo) {
    _tile_loadd(7, right, stride);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kBoth) _tile_dpbf16ps(3, 5, 7);
  }
}

struct TileQueries {
  const uint16_t *numbers;
  int64_t stride;  // elements
  int head_size;
};

template <bool kBoth, bool kTwo>
BB_INLINE void score_panels(const char *const *panels, const char *const *ahead, const TileQueries &query, float *scores) {
  constexpr int kStepBytes = kDepth * bb::kPanel * 2;  // of a panel
  clear_sums<kBoth, kTwo>();
  for (int d = 0, at = 0; d < query.head_size; d += kDepth, at += kStepBytes) {
    const uint16_t *const rows = query.numbers + d;
    if (ahead) {
      fetch(ahead[0] + at, kStepBytes);
      if constexpr (kTwo) fetch(ahead[1] + at, kStepBytes);
    }
    add_products<kBoth, kTwo>(rows, rows + kStrip * query.stride, query.stride * 2, panels[0] + at,
                              kTwo ? panels[1] + at : nullptr, 64);
  }
  store_sums<kBoth, kTwo>(scores, scores + kStrip * bb::kTile, bb::kTile * 4);
}

// scores[r][16 p + lane] = sum over d of query[r][d] key[d][lane], for all rows and panels of a tile of keys.
template <bool kBoth>
BB_INLINE void score_strips(const char *const *panels, int count, const char *const *ahead, const TileQueries &query,
                            float *scores) {
  int p = 0;
  for (; p + 2 <= count; p += 2)
    score_panels<kBoth, true>(panels + p, ahead ? ahead + p : nullptr, query, scores + p * bb::kPanel);
  if (p < count) score_panels<kBoth, false>(panels + p, ahead ? ahead + p : nullptr, query, scores + p * bb::kPanel);
}

template <>
BB_INLINE void score<Bfloat16Tiles>(const char *const *panels, int count, const char *const *ahead, int head_size, int rows,
                                    const uint16_t *query, int64_t query_stride, float *scores) {
  const TileQueries queries{query, query_stride, head_size};
  shape_strips(rows);
  if (rows > kStrip)
    score_strips<true>(panels, count, ahead, queries, scores);
  else
    score_strips<false>(panels, count, ahead, queries, scores);
}

template <>
BB_INLINE uint16_t *weights_of_row<Bfloat16Tiles>(bb::Scratch &s, int r) {
  return s.weights + int64_t(r) * bb::kTile;
}

template <bool kBoth, bool kTwo>
BB_INLINE void weigh_columns(const Runs &runs, const char *const *ahead, const uint16_t *weights, int column, float *out) {
  constexpr int64_t kRow = bb::kTile * 2;
  constexpr int kBytes = (kTwo ? 2 : 1) * kStrip * 4;
  float *const first = out + column, *const second = first + kStrip * bb::kMaxHead;
  load_sums<kBoth, kTwo>(first, second, bb::kMaxHead * 4);
  for (int i = 0; i < runs.count; ++i) {
    const uint16_t *const rows = weights + i * kDepth;
    const char *const values = runs.values[i] + int64_t(column) * 4;
    if (ahead)
      for (int e = 4 * i; e < 4 * i + 4 && e < runs.eights; ++e)
        BB_UNROLL
        for (int t = 0; t < 4; ++t) fetch(ahead[e] + t * runs.row_bytes + int64_t(column) * 4, kBytes);
    add_products<kBoth, kTwo>(rows, rows + kStrip * bb::kTile, kRow, values, values + 64, runs.row_bytes);
  }
  store_sums<kBoth, kTwo>(first, second, bb::kMaxHead * 4);
}

template <bool kBoth>
BB_INLINE void weigh_strips(const Runs &runs, const char *const *ahead, const uint16_t *weights, int head_size_v, float *out) {
  int d = 0;
  for (; d + 2 * kStrip <= head_size_v; d += 2 * kStrip) weigh_columns<kBoth, true>(runs, ahead, weights, d, out);
  if (d < head_size_v) weigh_columns<kBoth, false>(runs, ahead, weights, d, out);
}

// out[r] = out[r] * decay[r] + sum over keys of weight[r][key] value, for a band of rows that has just been scored: tiles
// have the shape of it.
template <class E>
void weigh(const Runs &runs, int head_size_v, int first_row, int rows, bb::Scratch &s) {
  float *const out = s.out + int64_t(first_row) * bb::kMaxHead;
  for (int r = 0; r < rows; ++r) {
    const float decay = s.decay[first_row + r];
    if (decay == 1.0f) continue;
    float *const row = out + int64_t(r) * bb::kMaxHead;
    for (int d = 0; d < head_size_v; d += kLanes) store(row + d, load(row + d) * all(decay));
  }
  const char *const *const ahead = first_row == 0 ? runs.ahead : nullptr;
  if (rows > kStrip)
    weigh_strips<true>(runs, ahead, s.weights, head_size_v, out);
  else
    weigh_strips<false>(runs, ahead, s.weights, head_size_v, out);
}

}  // namespace

#endif
#endif
