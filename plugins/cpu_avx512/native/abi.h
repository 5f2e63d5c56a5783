// The C interface of the kernel library: one argument structure for each entry point, pointers and counts only.
//
// Whoever changes a structure raises BB_ABI: the Python side refuses a library with another number. Nothing here
// allocates on behalf of the caller except bb_plan_create. All entry points return 0, or an error of bb_error.
#ifndef BASEBOARD_CPU_ABI_H
#define BASEBOARD_CPU_ABI_H

#include <stdint.h>

#define BB_ABI 3
#define BB_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum bb_level {
  BB_LEVEL_NONE = 0,
  BB_LEVEL_AVX2 = 1,         // with FMA and F16C
  BB_LEVEL_AVX512 = 2,       // F, BW, DQ, VL
  BB_LEVEL_AVX512_VNNI = 3,  // and dot products of int16 pairs
  BB_LEVEL_AVX512_BF16 = 4,  // and dot products of bfloat16 pairs
  BB_LEVEL_AVX512_AMX = 5,   // and products of tiles of bfloat16
};
enum bb_dtype { BB_FLOAT32 = 0, BB_BFLOAT16 = 1, BB_FLOAT16 = 2, BB_INT8 = 3 };
enum bb_error { BB_OK = 0, BB_BAD_LEVEL = 1, BB_NO_MEMORY = 2 };

// How a block of the cache is laid out. One head of one block is one run of bytes, B tokens, D and Dv elements:
//
//   float32, float16   keys [B/P][D][P]         values [B][Dv]           P = min(B, 16) tokens in a panel
//   bfloat16, int8     keys [B/P][D/2][P][2]    values [B/2][Dv][2]      pairs, as the dot-product units want them
//   int8 only          then key scales float32 [B], value scales float32 [B]
typedef struct {
  char *base;            // block 0
  int64_t block_stride;  // bytes
  int64_t head_stride;   // bytes
  int64_t value_offset;  // bytes from a head's keys to its values
  int64_t scale_offset;  // bytes from a head's keys to its key scales; int8 only
  int32_t kv_heads, head_size, head_size_v, block_size;
  int32_t stored;  // bb_dtype of the cache
  int32_t dtype;   // bb_dtype of queries, keys, values, results
} bb_cache;

typedef struct {
  const bb_cache *cache;
  const void *key, *value;  // [T, Hkv, D], [T, Hkv, Dv]
  const int64_t *slots;     // [T]
  int64_t tokens;
  int64_t key_token, key_head, value_token, value_head;  // strides in elements
  int32_t level, threads;
} bb_write_args;

typedef struct {
  const int32_t *query_start, *seq_lens;  // [S + 1], [S]; read only by bb_plan_create
  int64_t sequences;
  int32_t heads, kv_heads, head_size, head_size_v;
  int32_t window;  // 0: none
  int32_t causal;
  int32_t level, threads;
  int32_t stored;
} bb_plan_args;

typedef struct bb_plan bb_plan;

typedef struct {
  const bb_cache *cache;
  bb_plan *plan;
  const int32_t *block_tables;  // [S, M]
  int64_t table_stride;         // entries
  const void *query;            // [T, H, D]
  void *out;                    // [T, H, Dv]
  int64_t query_token, query_head, out_token, out_head;  // strides in elements
  const float *slopes, *sinks;                           // [H] or null
  float scale;
  float softcap;  // 0: none
  int32_t level, threads;
} bb_attend_args;

typedef struct {
  const char *source;
  char *destination;
  int64_t source_stride, destination_stride, nbytes;  // of a block
  const int64_t *pairs;                               // [n, 2]
  int64_t count;
  int32_t threads;
} bb_move_args;

// Rows are contiguous; x may be y, and residual is replaced by x + residual.
typedef struct {
  const void *x;
  void *residual;  // null: none
  const void *weight;
  void *y;
  int64_t rows, size, x_stride, residual_stride, y_stride;  // strides in elements
  float eps;
  int32_t dtype, level, threads;
} bb_norm_args;

typedef struct {
  const void *x;  // [rows, 2 * size]
  void *y;        // [rows, size]
  int64_t rows, size, x_stride, y_stride;
  int32_t dtype, level, threads;
} bb_gate_args;

// Turned in place. table float32 [positions, rotary_size]: cosines, then sines.
typedef struct {
  void *query, *key;
  const float *table;
  const int64_t *positions;  // [T]
  int64_t tokens;
  int64_t query_token, query_head, key_token, key_head;
  int32_t heads, kv_heads, rotary_size;
  int32_t interleaved;  // 0: halves, 1: neighbours
  int32_t dtype, level, threads;
} bb_rotary_args;

BB_EXPORT int32_t bb_abi(void);
BB_EXPORT int32_t bb_host_level(void);       // the highest level that this CPU and its system can run
BB_EXPORT int32_t bb_preferred_level(void);  // the fastest of those it can run

// The parallel entry point of the OpenMP runtime in this process (GOMP_parallel), or null for a pool of our own.
BB_EXPORT void bb_use_openmp(void *gomp_parallel);
// Binds the calling thread's OpenMP workers, of a team of `count`, to a CPU each: the first is left to the caller, who
// stays free, since threads that it starts later inherit its affinity. Returns how many are bound; 0 without a runtime.
BB_EXPORT int32_t bb_bind_workers(const int32_t *cpus, int32_t count);

BB_EXPORT int32_t bb_plan_create(const bb_plan_args *args, bb_plan **plan);
BB_EXPORT void bb_plan_destroy(bb_plan *plan);
BB_EXPORT int64_t bb_plan_items(const bb_plan *plan);

BB_EXPORT int32_t bb_write(const bb_write_args *args);
BB_EXPORT int32_t bb_attend(const bb_attend_args *args);
BB_EXPORT int32_t bb_move_blocks(const bb_move_args *args);
BB_EXPORT int32_t bb_rms_norm(const bb_norm_args *args);
BB_EXPORT int32_t bb_silu_and_mul(const bb_gate_args *args);
BB_EXPORT int32_t bb_rotary_embedding(const bb_rotary_args *args);

#ifdef __cplusplus
}
#endif
#endif
