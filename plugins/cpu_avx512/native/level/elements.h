// Kinds of stored elements, each with the arithmetic that is best for it at this level.
//
//   kind        stored              query, weight   arithmetic
//   Float32     float32             float32         float32
//   Float16     float16             float32         float32
//   Bfloat16    bfloat16 pairs      float32         float32: even and odd elements of the pairs apart
//   Bfloat16Dot bfloat16 pairs      bfloat16        dot products of pairs, summed in float32
//   Bfloat16Tiles (amx.h)           bfloat16        products of tiles, summed in float32
//   Int8        int8 pairs          int16           dot products of pairs, summed in int32
//
// Number is what a product is taken with, Sum what it is added to. A pair of queries is one 32-bit word. kTerms products
// at most go into one sum of a score.
#ifndef BASEBOARD_CPU_ELEMENTS_H
#define BASEBOARD_CPU_ELEMENTS_H

#include "simd.h"

namespace {

struct FloatSums {
  using Number = float;
  using Sum = Floats;
  static constexpr bool kScaled = false;
  static constexpr int kDeep = bb::kPanel;      // rows of weights are padded to a multiple of it
  static constexpr int kBand = bb::kBand;    // rows that go through a tile of keys together
  static BB_INLINE Sum none() { return zero(); }
  static BB_INLINE Floats result(Sum sum) { return sum; }
  template <class V>
  static BB_INLINE const V &arranged(const V &values, bb::Scratch &) {
    return values;
  }
};


// How many rows and vectors of sums are held in registers; 32 of them at the AVX-512 levels, 16 at AVX2.
#if BB_LEVEL >= 2
constexpr int kTall = 6, kWide = 4;
constexpr int kTallPairs = 10;  // what is widened from pairs takes two registers, so that more rows should share it
#else
constexpr int kTall = 4, kWide = 2;
constexpr int kTallPairs = 4;
#endif

struct Float32 : FloatSums {
  static constexpr int kPair = 1, kBytes = 4, kRows = kTall, kVectors = kWide, kTerms = 32;
  using Stored = Floats;
  using Spread = Floats;
  static BB_INLINE Stored take(const char *p) { return load(reinterpret_cast<const float *>(p)); }
  static BB_INLINE Spread spread(const Number *x) { return all(*x); }
  static BB_INLINE void add(Sum &sum, Stored a, Spread b) { sum = fma(a, b, sum); }
};

struct Float16 : FloatSums {
  static constexpr int kPair = 1, kBytes = 2, kRows = kTall, kVectors = kWide, kTerms = 32;
  using Stored = Floats;
  using Spread = Floats;
  static BB_INLINE Stored take(const char *p) { return from_float16(p); }
  static BB_INLINE Spread spread(const Number *x) { return all(*x); }
  static BB_INLINE void add(Sum &sum, Stored a, Spread b) { sum = fma(a, b, sum); }
};

struct Bfloat16 : FloatSums {
  static constexpr int kPair = 2, kBytes = 2, kRows = kTallPairs, kVectors = 2, kTerms = 128;
  struct Two {
    Floats even, odd;
  };
  using Stored = Two;
  using Spread = Two;
  static BB_INLINE Stored take(const char *p) {
#if BB_LEVEL >= 2
    const Ints bits = _mm512_loadu_si512(p);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(int(0xffff0000u))))};
#else
    const Ints bits = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(int(0xffff0000u))))};
#endif
  }
  static BB_INLINE Spread spread(const Number *x) { return {all(x[0]), all(x[1])}; }
  static BB_INLINE void add(Sum &sum, Stored a, Spread b) { sum = fma(a.odd, b.odd, fma(a.even, b.even, sum)); }
};

#if BB_LEVEL == 4
struct Bfloat16Dot : FloatSums {
  static constexpr int kPair = 2, kBytes = 2, kRows = kTall, kVectors = kWide, kTerms = 128;
  using Number = uint16_t;
  using Stored = __m512bh;
  using Spread = __m512bh;
  static BB_INLINE Stored take(const char *p) { return (Stored)_mm512_loadu_si512(p); }
  static BB_INLINE Spread spread(const Number *x) {
    int32_t pair;
    memcpy(&pair, x, 4);
    return (Spread)_mm512_set1_epi32(pair);
  }
  static BB_INLINE void add(Sum &sum, Stored a, Spread b) { sum = _mm512_dpbf16_ps(sum, a, b); }
};
#endif

struct Int8 {
  static constexpr int kPair = 2, kBytes = 1, kRows = kTall, kVectors = kWide, kTerms = 128;
  static constexpr bool kScaled = true;
  static constexpr int kDeep = bb::kPanel, kBand = bb::kBand;
  using Number = int16_t;
  using Sum = Ints;
  using Stored = Ints;
  using Spread = Ints;
  static BB_INLINE Floats result(Sum sum) { return to_floats(sum); }
  template <class V>
  static BB_INLINE const V &arranged(const V &values, bb::Scratch &) {
    return values;
  }
#if BB_LEVEL >= 2
  static BB_INLINE Sum none() { return _mm512_setzero_si512(); }
  static BB_INLINE Stored take(const char *p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
  }
  static BB_INLINE Spread spread(const Number *x) {
    int32_t pair;
    memcpy(&pair, x, 4);
    return _mm512_set1_epi32(pair);
  }
  static BB_INLINE void add(Sum &sum, Stored a, Spread b) {
#if BB_LEVEL >= 3
    sum = _mm512_dpwssd_epi32(sum, a, b);
#else
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
  }
#else
  static BB_INLINE Sum none() { return _mm256_setzero_si256(); }
  static BB_INLINE Stored take(const char *p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
  }
  static BB_INLINE Spread spread(const Number *x) {
    int32_t pair;
    memcpy(&pair, x, 4);
    return _mm256_set1_epi32(pair);
  }
  static BB_INLINE void add(Sum &sum, Stored a, Spread b) { sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
#endif
};

// Where the weights of a row of scores go: into their place.
template <class E>
BB_INLINE typename E::Number *weights_of_row(bb::Scratch &s, int r) {
  return reinterpret_cast<typename E::Number *>(s.scores + int64_t(r) * bb::kTile);
}

// int16 numbers times int8 elements are summed up in int32 over a head or over a tile of keys.
constexpr float kInt16Limit = 32767.0f;
static_assert(32767ll * 127 * (bb::kTile > bb::kMaxHead ? bb::kTile : bb::kMaxHead) < 2147483647ll, "sums overflow");

// Pack::row turns `count` floats, a multiple of 16, into numbers, which may take the floats' place, and returns
// their unit: number * unit is the float.
template <class Number>
struct Pack;

template <>
struct Pack<float> {
  static BB_INLINE float row(float *to, const float *from, int count) {
    if (to != from) memcpy(to, from, size_t(count) * 4);
    return 1.0f;
  }
};

template <>
struct Pack<uint16_t> {
  static BB_INLINE float row(uint16_t *to, const float *from, int count) {
    store_row(reinterpret_cast<char *>(to), from, BB_BFLOAT16, count);
    return 1.0f;
  }
};

template <>
struct Pack<int16_t> {
  static BB_INLINE float row(int16_t *to, const float *from, int count) {
    Floats most = zero();
    for (int i = 0; i < count; i += kLanes) most = max(most, magnitude(load(from + i)));
    float top = highest(most);
    if (!(top > 0.0f && top < kInfinity)) top = kInt16Limit;  // all zeros, or nothing that integers could express
    const Floats inverse = all(kInt16Limit / top);
    for (int i = 0; i < count; i += kLanes) to_int16(to + i, to_ints(load(from + i) * inverse));
    return top / kInt16Limit;
  }
};

}  // namespace
#endif
