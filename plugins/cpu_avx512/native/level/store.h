// Writing keys and values of new tokens into their slots.
#ifndef BASEBOARD_CPU_STORE_H
#define BASEBOARD_CPU_STORE_H

#include "simd.h"

namespace {

// One slot of one head.
struct Slot {
  const bb_cache &cache;
  char *head;
  int token;  // within the block

  BB_INLINE Slot(const bb_cache &c, int64_t slot, int kv_head)
      : cache(c),
        head(c.base + slot / c.block_size * c.block_stride + kv_head * c.head_stride),
        token(int(slot % c.block_size)) {}
};

// A key's elements lie `panel` elements apart, or pairs of them do. Pair: a pair's integer type, an element's if alone.
template <class Pair>
BB_INLINE void put_key(const Slot &slot, const char *from) {
  const int panel = slot.cache.block_size < bb::kPanel ? slot.cache.block_size : bb::kPanel;
  const int64_t element = slot.cache.stored == BB_INT8 ? 1 : element_size(slot.cache.stored);
  const int64_t steps = slot.cache.head_size * element / int64_t(sizeof(Pair));
  char *to = slot.head + slot.token / panel * panel * slot.cache.head_size * element +
             slot.token % panel * int64_t(sizeof(Pair));
  for (int64_t i = 0; i < steps; ++i, to += panel * sizeof(Pair)) memcpy(to, from + i * sizeof(Pair), sizeof(Pair));
}

// A value's elements lie side by side, or with those of the token that is its pair in between.
template <class Element>
BB_INLINE void put_paired_value(const Slot &slot, const char *from) {
  const int64_t size = slot.cache.head_size_v;
  char *to = slot.head + slot.cache.value_offset +
             (slot.token / 2 * 2 * size + slot.token % 2) * int64_t(sizeof(Element));
  for (int64_t d = 0; d < size; ++d) memcpy(to + 2 * d * sizeof(Element), from + d * sizeof(Element), sizeof(Element));
}

#if BB_LEVEL >= 2
// The same for 16-bit elements, 16 at once: widened to 32 bits, of which only the token's own half is stored.
template <>
BB_INLINE void put_paired_value<uint16_t>(const Slot &slot, const char *from) {
  const int64_t size = slot.cache.head_size_v;
  const bool odd = slot.token % 2;
  char *to = slot.head + slot.cache.value_offset + slot.token / 2 * 2 * size * 2;
  const __mmask32 half = odd ? 0xaaaaaaaau : 0x55555555u;
  const __m128i shift = _mm_cvtsi32_si128(odd ? 16 : 0);
  for (int64_t d = 0; d < size; d += 16) {
    const int64_t left = size - d;
    const __mmask16 there = left >= 16 ? 0xffff : __mmask16((1u << left) - 1);
    const __mmask32 places = left >= 16 ? half : half & ((1ull << (2 * left)) - 1);
    const __m256i row = _mm256_maskz_loadu_epi16(there, from + 2 * d);
    _mm512_mask_storeu_epi16(to + 4 * d, places, _mm512_sll_epi32(_mm512_cvtepu16_epi32(row), shift));
  }
}
#endif

BB_INLINE void put_plain_value(const Slot &slot, const char *from, int64_t element) {
  const int64_t bytes = slot.cache.head_size_v * element;
  memcpy(slot.head + slot.cache.value_offset + slot.token * bytes, from, size_t(bytes));
}

// Rounds a row to int8, with the scale that its largest element asks for. Rows of NaN become zeros.
BB_INLINE float quantise(int8_t *to, const float *row, int64_t count) {
  float top = 0.0f;
  for (int64_t i = 0; i < count; ++i) top = __builtin_fabsf(row[i]) > top ? __builtin_fabsf(row[i]) : top;
  if (!(top > 0.0f && top < kInfinity)) {
    memset(to, 0, size_t(count));
    return 0.0f;
  }
  const float scale = top / 127.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float x = row[i] / scale;
    to[i] = int8_t(x != x ? 0.0f : __builtin_rintf(x));
  }
  return scale;
}

BB_INLINE void put_int8(const Slot &slot, const char *key, const char *value) {
  const bb_cache &c = slot.cache;
  float row[bb::kMaxHead];
  int8_t small[bb::kMaxHead];
  float *const scales = reinterpret_cast<float *>(slot.head + c.scale_offset) + slot.token;
  load_row(row, key, c.dtype, c.head_size);
  scales[0] = quantise(small, row, c.head_size);
  put_key<uint16_t>(slot, reinterpret_cast<const char *>(small));
  load_row(row, value, c.dtype, c.head_size_v);
  scales[c.block_size] = quantise(small, row, c.head_size_v);
  put_paired_value<uint8_t>(slot, reinterpret_cast<const char *>(small));
}

BB_INLINE void put(const Slot &slot, const char *key, const char *value) {
  switch (slot.cache.stored) {
    case BB_FLOAT32: put_key<uint32_t>(slot, key); return put_plain_value(slot, value, 4);
    case BB_FLOAT16: put_key<uint16_t>(slot, key); return put_plain_value(slot, value, 2);
    case BB_BFLOAT16: put_key<uint32_t>(slot, key); return put_paired_value<uint16_t>(slot, value);
    case BB_INT8: return put_int8(slot, key, value);
  }
}

void write(const bb_write_args *args, int64_t begin, int64_t end) {
  const bb_cache &cache = *args->cache;
  const int64_t size = element_size(cache.dtype);
  for (int64_t t = begin; t < end; ++t) {
    const char *key = static_cast<const char *>(args->key) + t * args->key_token * size;
    const char *value = static_cast<const char *>(args->value) + t * args->value_token * size;
    for (int h = 0; h < cache.kv_heads; ++h, key += args->key_head * size, value += args->value_head * size)
      put(Slot(cache, args->slots[t], h), key, value);
  }
}

}  // namespace
#endif
