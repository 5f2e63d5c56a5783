// What is compiled once for each instruction-set level, and the work items it is given. Plain data only: a function
// template or inline function of a shared header, compiled for a high level, could be the copy that the linker keeps
// for all, and then run on a CPU that does not have its instructions.
#ifndef BASEBOARD_CPU_KERNELS_H
#define BASEBOARD_CPU_KERNELS_H

#include <stdint.h>

#include "abi.h"

namespace bb {

constexpr int kTile = 256;     // keys that are scored before they are weighed
constexpr int kMaxRows = 256;  // rows of one item: query tokens times query heads that share a KV head
constexpr int kMaxHead = 256;  // head size
constexpr int kPanel = 16;     // keys that lie side by side
constexpr int kBand = 96;      // rows that go through a tile of keys together
constexpr int kTileBand = 32;  // the same for AMX tiles: so few that their scores stay in the first-level cache

// Whether bfloat16 goes through AMX tiles; other head sizes have a rest that fills none.
static inline bool fills_tiles(int32_t head_size, int32_t head_size_v) { return head_size % 32 == 0 && head_size_v % 16 == 0; }

// Attention of some query rows of one sequence over a range of its keys.
//
//   row r = query token query_begin + r / heads, query head head_begin + r % heads
struct Item {
  int32_t sequence, kv_head, head_begin, heads;
  int32_t query_begin, queries;   // tokens of the step, from the sequence's first
  int32_t first_token;            // of the sequence in the step
  int32_t position;               // absolute, of query token query_begin
  int32_t seq_len;
  int32_t key_begin, key_end;     // absolute positions, clipped to what some row sees
  int32_t group;                  // of parts of the same rows, or -1: the item is whole
  int64_t partial;                // floats into the partial results, for parts
};

// The parts of one run of rows whose keys were split.
struct Group {
  Item first;
  int32_t parts;
  int64_t stride;  // floats between the partial results of two parts: [rows][Dv padded], [rows] maxima, [rows] sums
};

// Memory of one thread, each array aligned to 64 bytes.
struct alignas(64) Scratch {
  float scores[kBand * kTile];
  float query[kMaxRows * kMaxHead];
  float out[kMaxRows * kMaxHead];
  float highest[kMaxRows], sums[kMaxRows], decay[kMaxRows], unit[kMaxRows], query_unit[kMaxRows];
  float key_scales[kTile], value_scales[kTile];
  float row[kMaxHead];
  uint16_t weights[kTileBand * kTile];         // of a band, for elements whose weights do not take the scores' place
  char edges[4 * 8 * kMaxHead * 4];        // eights of values with what is not ours zeroed
  char panels[kTile * kMaxHead * 4];       // keys of blocks of eight, joined to panels of sixteen
};

struct Kernels {
  void (*attend)(const bb_attend_args *, int32_t window, int32_t causal, const Item *, float *partials, Scratch *);
  void (*reduce)(const bb_attend_args *, const Group *, const float *partials, Scratch *);
  void (*write)(const bb_write_args *, int64_t begin, int64_t end);
  void (*rms_norm)(const bb_norm_args *, int64_t begin, int64_t end);
  void (*silu_and_mul)(const bb_gate_args *, int64_t begin, int64_t end);
  void (*rotary_embedding)(const bb_rotary_args *, int64_t begin, int64_t end);
};

extern const Kernels kernels_avx2, kernels_avx512, kernels_avx512_vnni, kernels_avx512_bf16,
    kernels_avx512_amx;

}  // namespace bb
#endif
