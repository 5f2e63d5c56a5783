// Copies of whole blocks. Stores go past the caches: what is moved is not read again soon. Baseline x86-64 code.
#include <emmintrin.h>

#include <cstring>

#include "abi.h"
#include "team.h"

namespace {

// Copies by whole cache lines where both ends lie on them, as blocks of a pool do.
void copy_past_cache(char *to, const char *from, int64_t nbytes) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 != 0) {
    std::memcpy(to, from, size_t(nbytes));
    return;
  }
  int64_t at = 0;
  for (; at + 64 <= nbytes; at += 64) {
    const __m128i *line = reinterpret_cast<const __m128i *>(from + at);
    __m128i *target = reinterpret_cast<__m128i *>(to + at);
    const __m128i a = _mm_load_si128(line), b = _mm_load_si128(line + 1);
    const __m128i c = _mm_load_si128(line + 2), d = _mm_load_si128(line + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + at, from + at, size_t(nbytes - at));
}

}  // namespace

// A null source means zeros: pairs then hold the destination in both columns.
extern "C" int32_t bb_move_blocks(const bb_move_args *args) {
  bb::for_range(args->count, 1 + (1 << 18) / (args->nbytes + 1), args->threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      char *to = args->destination + args->pairs[2 * i + 1] * args->destination_stride;
      if (args->source)
        copy_past_cache(to, args->source + args->pairs[2 * i] * args->source_stride, args->nbytes);
      else
        std::memset(to, 0, size_t(args->nbytes));
    }
    _mm_sfence();
  });
  return BB_OK;
}
