// The two matrix products of attention, in register tiles: rows of queries with panels of keys, rows of weights with
// values.
#ifndef BASEBOARD_CPU_PRODUCTS_H
#define BASEBOARD_CPU_PRODUCTS_H

#include "elements.h"

namespace {

constexpr int kPanelVectors = bb::kPanel / kLanes;

// Asks for the lines of `bytes` bytes from `p` on. Into the second-level cache: the first has too few misses under way at
// once to keep the memory busy.
BB_INLINE void fetch(const char *p, int bytes) {
  BB_UNROLL
  for (int i = 0; i < bytes; i += 64) _mm_prefetch(p + i, _MM_HINT_T1);
}

// Products of R queries with P panels of 16 keys each:  scores[r][16 p + lane] = sum over d of query[r][d] key[d][lane]
//
//   panel     [D / pair][16][pair]
//   ahead     the same keys' values, fetched meanwhile; null: nothing
template <class E, int R, int P>
BB_INLINE void score_tile(const char *const *panels, const char *const *ahead, int head_size,
                          const typename E::Number *query, int64_t query_stride, float *scores) {
  constexpr int kCount = P * kPanelVectors;
  constexpr int kVectorBytes = kLanes * E::kPair * E::kBytes;
  const int steps = head_size / E::kPair;
  // Sums of few terms are added up rather than one of many: the error of a sum grows with its length.
  for (int first = 0; first < steps; first += E::kTerms) {
    const int last = first + E::kTerms < steps ? first + E::kTerms : steps;
    typename E::Sum sums[R][kCount];
    BB_UNROLL
    for (int r = 0; r < R; ++r)
      BB_UNROLL
      for (int c = 0; c < kCount; ++c) sums[r][c] = E::none();
    for (int i = first; i < last; ++i) {
      typename E::Stored keys[kCount];
      BB_UNROLL
      for (int c = 0; c < kCount; ++c)
        keys[c] = E::take(panels[c / kPanelVectors] + (i * kPanelVectors + c % kPanelVectors) * kVectorBytes);
      if (ahead)
        BB_UNROLL
        for (int p = 0; p < P; ++p) fetch(ahead[p] + i * kPanelVectors * kVectorBytes, kPanelVectors * kVectorBytes);
      BB_UNROLL
      for (int r = 0; r < R; ++r) {
        const typename E::Spread x = E::spread(query + r * query_stride + i * E::kPair);
        BB_UNROLL
        for (int c = 0; c < kCount; ++c) E::add(sums[r][c], keys[c], x);
      }
    }
    BB_UNROLL
    for (int r = 0; r < R; ++r)
      BB_UNROLL
      for (int c = 0; c < kCount; ++c) {
        float *const to = scores + r * bb::kTile + c * kLanes;
        store(to, first == 0 ? E::result(sums[r][c]) : load(to) + E::result(sums[r][c]));
      }
  }
}

// What the weights of a tile are multiplied with, eight keys at a time.
struct Values {
  const char *const *eights;  // each [8 / pair][Dv][pair]
  const char *const *ahead;   // for each eight as many bytes that are read next, fetched meanwhile; or null
  int count;                  // of eights
  int64_t row_bytes;          // Dv * pair * bytes
};

// R rows of results, V vectors of them:  out[r] = out[r] * decay[r] + unit[r] * sum over keys of weight[r][key] value
template <class E, int R, int V, bool kHalf>
BB_INLINE void weigh_tile(const Values &values, int64_t offset, const typename E::Number *weights, float *out,
                          const float *decay, const float *unit) {
  constexpr int kVectorBytes = kLanes * E::kPair * E::kBytes;
  constexpr int64_t kWeightStride = bb::kTile * 4 / int64_t(sizeof(typename E::Number));
  typename E::Sum sums[R][V];
  BB_UNROLL
  for (int r = 0; r < R; ++r)
    BB_UNROLL
    for (int v = 0; v < V; ++v) sums[r][v] = E::none();
  for (int e = 0; e < values.count; ++e) {
    const char *row = values.eights[e] + offset;
    const typename E::Number *w = weights + e * 8;
    for (int i = 0; i < 8 / E::kPair; ++i, row += values.row_bytes, w += E::kPair) {
      typename E::Stored taken[V];
      BB_UNROLL
      for (int v = 0; v < V; ++v) {
        if constexpr (kHalf) {
          alignas(64) char half[kVectorBytes] = {};
          memcpy(half, row, kVectorBytes / 2);
          taken[v] = E::take(half);
        } else {
          taken[v] = E::take(row + v * kVectorBytes);
        }
      }
      if (values.ahead) fetch(values.ahead[e] + offset + i * values.row_bytes, V * kVectorBytes);
      BB_UNROLL
      for (int r = 0; r < R; ++r) {
        const typename E::Spread x = E::spread(w + r * kWeightStride);
        BB_UNROLL
        for (int v = 0; v < V; ++v) E::add(sums[r][v], taken[v], x);
      }
    }
  }
  BB_UNROLL
  for (int r = 0; r < R; ++r)
    BB_UNROLL
    for (int v = 0; v < V; ++v) {
      float *const p = out + r * bb::kMaxHead + v * kLanes;
      Floats sum = E::result(sums[r][v]);
      if constexpr (E::kScaled) sum = sum * all(unit[r]);
      store(p, fma(load(p), all(decay[r]), sum));
    }
}

// Calls f with a compile-time number, of rows or of panels.
template <int N, class F>
BB_INLINE void with_number(int number, const F &f) {
  if constexpr (N > 1) {
    if (number < N) return with_number<N - 1>(number, f);
  }
  f.template operator()<N>();
}

// Rows in register tiles of nearly the same height: 8 rows as 4 and 4 rather than 6 and 2.
template <class E, class F>
BB_INLINE void for_row_tiles(int rows, const F &f) {
  int left = (rows + E::kRows - 1) / E::kRows;
  for (int at = 0; at < rows; --left) {
    const int height = (rows - at + left - 1) / left;
    f(at, height);
    at += height;
  }
}

// Panels of a tile's rest, as many at once as there are: one alone has too few sums to keep the units busy.
template <class E, int R>
struct ScorePanels {
  const char *const *panels;
  const char *const *ahead;
  int head_size;
  const typename E::Number *query;
  int64_t query_stride;
  float *scores;
  template <int P>
  BB_INLINE void operator()() const {
    score_tile<E, R, P>(panels, ahead, head_size, query, query_stride, scores);
  }
};

template <class E>
struct ScoreRows {
  const char *const *panels;
  const char *const *ahead;
  int head_size, wide;
  const typename E::Number *query;
  int64_t query_stride;
  float *scores;
  template <int R>
  BB_INLINE void operator()() const {
    const ScorePanels<E, R> tile{panels, ahead, head_size, query, query_stride, scores};
    with_number<E::kVectors / kPanelVectors>(wide, tile);
  }
};

// Scores of all rows with all panels of a tile. `ahead`: for each panel what is fetched meanwhile.
template <class E>
void score(const char *const *panels, int count, const char *const *ahead, int head_size, int rows,
           const typename E::Number *query, int64_t query_stride, float *scores) {
  constexpr int kMost = E::kVectors / kPanelVectors;
  for (int p = 0; p < count;) {
    const int wide = count - p < kMost ? count - p : kMost;
    for_row_tiles<E>(rows, [&](int at, int height) {
      const ScoreRows<E> tile{panels + p, at == 0 ? ahead + p : nullptr, head_size, wide, query + at * query_stride, query_stride,
                              scores + int64_t(at) * bb::kTile + p * bb::kPanel};
      with_number<E::kRows>(height, tile);
    });
    p += wide;
  }
}

template <class E>
struct WeighRows {
  const Values &values;
  int head_size_v;
  const typename E::Number *weights;
  float *out;
  const float *decay, *unit;
  template <int R>
  BB_INLINE void operator()() const {
    constexpr int kVectorBytes = kLanes * E::kPair * E::kBytes;
    const int whole = head_size_v / kLanes;
    int v = 0;
    for (; v + E::kVectors <= whole; v += E::kVectors)
      weigh_tile<E, R, E::kVectors, false>(values, int64_t(v) * kVectorBytes, weights, out + v * kLanes, decay, unit);
    for (; v < whole; ++v)
      weigh_tile<E, R, 1, false>(values, int64_t(v) * kVectorBytes, weights, out + v * kLanes, decay, unit);
    if (v * kLanes < head_size_v)
      weigh_tile<E, R, 1, true>(values, int64_t(v) * kVectorBytes, weights, out + v * kLanes, decay, unit);
  }
};

// Results of all rows from all values of a tile, in runs of values that stay in the first-level cache for all rows.
template <class E>
void weigh(const Values &values, int head_size_v, int first_row, int rows, bb::Scratch &s) {
  constexpr int64_t kWeightStride = bb::kTile * 4 / int64_t(sizeof(typename E::Number));
  constexpr int kCached = 24 * 1024;
  const typename E::Number *weights = reinterpret_cast<const typename E::Number *>(s.scores);
  const int run = rows <= E::kRows ? values.count : kCached / (8 * head_size_v * E::kBytes) + 1;
  for (int first = 0; first < values.count; first += run) {
    const int count = values.count - first < run ? values.count - first : run;
    for_row_tiles<E>(rows, [&](int at, int height) {
      const Values some{values.eights + first, at == 0 ? values.ahead + first : nullptr, count,
                        values.row_bytes};
      const WeighRows<E> tile{some, head_size_v, weights + at * kWeightStride + first * 8,
                              s.out + int64_t(first_row + at) * bb::kMaxHead, s.decay + first_row + at, s.unit + first_row + at};
      with_number<E::kRows>(height, tile);
    });
    for (int r = 0; r < rows; ++r) s.decay[first_row + r] = 1.0f;  // what came before has been scaled once
  }
}

}  // namespace
#endif
