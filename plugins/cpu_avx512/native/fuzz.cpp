// Random steps against attention in double precision, at every level of this CPU. Built with the sanitizers, it also
// shows that nothing is read or written outside: pools, queries and results are exactly as long as they must be.
//
//   fuzz_attention [seconds] [seed]      prints how many cases it ran; exits with 1 at the first that differs
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "abi.h"

namespace {

using Rng = std::mt19937_64;

int pick(Rng &rng, int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); }
double normal(Rng &rng) { return std::normal_distribution<double>()(rng); }

// Numbers in the model's dtype.
struct Numbers {
  int32_t dtype;
  std::vector<char> bytes;
  int64_t size() const { return dtype == BB_FLOAT32 ? 4 : 2; }
  Numbers(int32_t d, int64_t count) : dtype(d), bytes(size_t(count * (d == BB_FLOAT32 ? 4 : 2))) {}
  void set(int64_t i, double x) {
    const float f = float(x);
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    if (dtype == BB_FLOAT32) {
      std::memcpy(&bytes[size_t(4 * i)], &bits, 4);
      return;
    }
    const uint16_t half = dtype == BB_BFLOAT16 ? uint16_t((bits + 0x8000) >> 16) : to_half(bits);
    std::memcpy(&bytes[size_t(2 * i)], &half, 2);
  }
  double get(int64_t i) const {
    if (dtype == BB_FLOAT32) {
      float f;
      std::memcpy(&f, &bytes[size_t(4 * i)], 4);
      return f;
    }
    uint16_t half;
    std::memcpy(&half, &bytes[size_t(2 * i)], 2);
    if (dtype == BB_FLOAT16) return from_half(half);
    const uint32_t bits = uint32_t(half) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  }
  static uint16_t to_half(uint32_t bits) {  // of numbers of middling size, cut off
    const int exponent = int((bits >> 23) & 255) - 112;
    if (exponent <= 0) return uint16_t((bits >> 16) & 0x8000);
    return uint16_t(((bits >> 16) & 0x8000) | uint32_t(exponent << 10) | ((bits >> 13) & 0x3ff));
  }
  static double from_half(uint16_t h) {
    const int exponent = (h >> 10) & 31, fraction = h & 0x3ff;
    const double size = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
    return h & 0x8000 ? -size : size;
  }
};

struct Case {
  bb_cache cache{};
  int heads, window, causal, threads, level;
  double scale, softcap;
  bool alibi, sinks;
  std::vector<int32_t> starts{0}, lengths, tables;
  std::vector<int64_t> slots, every_slot;
  int64_t columns = 0, blocks = 1;
};

constexpr int kBlockSizes[] = {8, 16, 32, 64, 128, 256};

Case make_case(Rng &rng) {
  Case c;
  c.cache.kv_heads = pick(rng, 1, 3);
  c.heads = c.cache.kv_heads * (pick(rng, 0, 9) ? pick(rng, 1, 9) : pick(rng, 90, 110));
  // Half of them such as models have, which the faster kernels are for.
  c.cache.head_size = pick(rng, 0, 1) ? 32 * pick(rng, 1, pick(rng, 0, 4) ? 4 : 8) : 8 * pick(rng, 1, 32);
  c.cache.head_size_v = pick(rng, 0, 2) ? c.cache.head_size : 8 * pick(rng, 1, 32);
  c.cache.block_size = kBlockSizes[pick(rng, 0, 5)];
  c.cache.dtype = pick(rng, 0, 2);
  c.cache.stored = pick(rng, 0, 3) ? c.cache.dtype : int32_t(BB_INT8);
  c.window = pick(rng, 0, 2) ? 0 : pick(rng, 1, 100);
  c.causal = pick(rng, 0, 4) != 0;
  c.threads = pick(rng, 1, 3);
  c.level = pick(rng, 1, bb_host_level());
  c.scale = 1 / std::sqrt(double(c.cache.head_size));
  c.softcap = pick(rng, 0, 3) ? 0 : 0.5 + 3 * std::abs(normal(rng));
  c.alibi = pick(rng, 0, 3) == 0;
  c.sinks = pick(rng, 0, 3) == 0;
  const int sequences = pick(rng, 1, 5);
  for (int s = 0; s < sequences; ++s) {
    const int count = pick(rng, 0, 1) ? 1 : pick(rng, 1, 40);
    const int length = count + (pick(rng, 0, 1) ? 0 : pick(rng, 0, pick(rng, 0, 5) ? 200 : 1500));
    c.starts.push_back(c.starts.back() + count);
    c.lengths.push_back(length);
    c.columns = std::max<int64_t>(c.columns, (length + c.cache.block_size - 1) / c.cache.block_size);
  }
  return c;
}

// Blocks in random order; the last block of the pool is always somebody's.
void place(Case &c, Rng &rng) {
  std::vector<int32_t> free;
  int64_t need = 0;
  for (int length : c.lengths) need += (length + c.cache.block_size - 1) / c.cache.block_size;
  c.blocks = need + 1;
  for (int64_t b = 1; b < c.blocks; ++b) free.push_back(int32_t(b));
  std::shuffle(free.begin(), free.end(), rng);
  c.tables.assign(c.lengths.size() * size_t(c.columns), 0);
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    const int count = c.starts[s + 1] - c.starts[s];
    for (int64_t j = 0; j < c.lengths[s]; ++j) {
      int32_t &block = c.tables[s * size_t(c.columns) + size_t(j / c.cache.block_size)];
      if (j % c.cache.block_size == 0) {
        block = free.back();
        free.pop_back();
      }
      c.every_slot.push_back(int64_t(block) * c.cache.block_size + j % c.cache.block_size);
      if (j >= c.lengths[s] - count) c.slots.push_back(c.every_slot.back());
    }
  }
}

std::vector<double> rounded(const Numbers &row, int64_t at, int size, bool to_int8) {
  std::vector<double> out(static_cast<size_t>(size));
  float top = 0;
  for (int d = 0; d < size; ++d) {
    out[size_t(d)] = row.get(at + d);
    top = std::max(top, std::fabs(float(out[size_t(d)])));
  }
  const float step = top / 127;
  if (to_int8)
    for (double &x : out) x = double(std::rint(float(x) / step)) * double(step);
  return out;
}

struct Tolerance {
  double absolute;
};

Tolerance tolerance(const Case &c) {
  if (c.cache.dtype == BB_BFLOAT16) return {4e-2};
  if (c.cache.dtype == BB_FLOAT16) return {6e-3};
  return {c.cache.stored == BB_INT8 ? 4e-3 : 3e-5};
}

bool run(const Case &made, Rng &rng) {
  Case c = made;
  place(c, rng);
  bb_cache &cache = c.cache;
  const int64_t element = cache.stored == BB_INT8 ? 1 : cache.stored == BB_FLOAT32 ? 4 : 2;
  cache.value_offset = int64_t(cache.block_size) * cache.head_size * element;
  cache.scale_offset = cache.value_offset + int64_t(cache.block_size) * cache.head_size_v * element;
  cache.head_stride = cache.scale_offset + (cache.stored == BB_INT8 ? 8 * cache.block_size : 0);
  cache.block_stride = cache.head_stride * cache.kv_heads;
  const size_t pool_bytes = size_t(cache.block_stride * c.blocks);
  std::unique_ptr<char, decltype(&std::free)> pool(
      static_cast<char *>(std::aligned_alloc(64, (pool_bytes + 63) / 64 * 64)), &std::free);
  cache.base = pool.get();
  std::memset(cache.base, 0xff, pool_bytes);  // NaN in every dtype, scales included

  const int64_t all = int64_t(c.every_slot.size()), tokens = int64_t(c.slots.size());
  const int64_t key_row = int64_t(cache.kv_heads) * cache.head_size, value_row = int64_t(cache.kv_heads) * cache.head_size_v;
  Numbers key(cache.dtype, all * key_row), value(cache.dtype, all * value_row);
  Numbers query(cache.dtype, tokens * c.heads * cache.head_size), out(cache.dtype, tokens * c.heads * cache.head_size_v);
  for (int64_t i = 0; i < all * key_row; ++i) key.set(i, normal(rng));
  for (int64_t i = 0; i < all * value_row; ++i) value.set(i, normal(rng));
  for (int64_t i = 0; i < tokens * c.heads * cache.head_size; ++i) query.set(i, normal(rng));
  std::vector<float> slopes, sinks;
  for (int h = 0; h < c.heads; ++h) {
    slopes.push_back(float(std::exp2(-8.0 * (h + 1) / c.heads)));
    sinks.push_back(float(normal(rng)));
  }

  bb_write_args write{&cache, key.bytes.data(), value.bytes.data(), c.every_slot.data(), all, key_row, cache.head_size,
                      value_row, cache.head_size_v, c.level, c.threads};
  if (bb_write(&write) != BB_OK) return false;
  bb_plan_args plan_args{c.starts.data(), c.lengths.data(), int64_t(c.lengths.size()), c.heads, cache.kv_heads,
                         cache.head_size, cache.head_size_v, c.window, c.causal, c.level, c.threads, cache.stored};
  bb_plan *plan = nullptr;
  if (bb_plan_create(&plan_args, &plan) != BB_OK) return false;
  bb_attend_args attend{&cache, plan, c.tables.data(), c.columns, query.bytes.data(), out.bytes.data(),
                        int64_t(c.heads) * cache.head_size, cache.head_size, int64_t(c.heads) * cache.head_size_v,
                        cache.head_size_v, c.alibi ? slopes.data() : nullptr, c.sinks ? sinks.data() : nullptr,
                        float(c.scale), float(c.softcap), c.level, c.threads};
  const int32_t code = bb_attend(&attend);
  bb_plan_destroy(plan);
  if (code != BB_OK) return false;

  const double allowed = tolerance(c).absolute;
  int64_t first_key = 0;
  for (size_t s = 0; s < c.lengths.size(); first_key += c.lengths[s], ++s) {
    const int length = c.lengths[s], count = c.starts[s + 1] - c.starts[s];
    // A few rows of each sequence: the reference is slow, and rows are alike.
    for (int n = 0; n < 3; ++n) {
      const int i = pick(rng, 0, count - 1), h = pick(rng, 0, c.heads - 1), kv = h / (c.heads / cache.kv_heads);
      const int64_t t = c.starts[s] + i, p = length - count + i;
      std::vector<double> sum(static_cast<size_t>(cache.head_size_v));
      double weights = c.sinks ? std::exp(double(sinks[size_t(h)])) : 0;
      bool seen = false;
      for (int64_t j = 0; j < length; ++j) {
        if ((c.causal && j > p) || (c.window && j <= p - c.window)) continue;
        const std::vector<double> k = rounded(key, ((first_key + j) * cache.kv_heads + kv) * cache.head_size,
                                              cache.head_size, cache.stored == BB_INT8);
        const std::vector<double> v = rounded(value, ((first_key + j) * cache.kv_heads + kv) * cache.head_size_v,
                                              cache.head_size_v, cache.stored == BB_INT8);
        double x = 0;
        for (int d = 0; d < cache.head_size; ++d) x += query.get((t * c.heads + h) * cache.head_size + d) * k[size_t(d)];
        x *= c.scale;
        if (c.softcap > 0) x = c.softcap * std::tanh(x / c.softcap);
        if (c.alibi) x += double(slopes[size_t(h)]) * double(j - p);
        const double w = std::exp(x);
        weights += w;
        seen = true;
        for (int d = 0; d < cache.head_size_v; ++d) sum[size_t(d)] += w * v[size_t(d)];
      }
      for (int d = 0; d < cache.head_size_v; ++d) {
        const double truth = seen ? sum[size_t(d)] / weights : 0;
        const double got = out.get((t * c.heads + h) * cache.head_size_v + d);
        if (!(std::abs(got - truth) <= allowed * (1 + std::abs(truth)))) {
          std::fprintf(stderr, "row %lld head %d element %d: %g, not %g\n", (long long)t, h, d, got, truth);
          return false;
        }
      }
    }
  }
  return true;
}

}  // namespace

int main(int argc, char **argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const auto began = std::chrono::steady_clock::now();
  uint64_t cases = 0;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() < seconds) {
    const uint64_t seed = first + cases;
    Rng rng(seed);
    const Case c = make_case(rng);
    if (!run(c, rng)) {
      std::fprintf(stderr,
                   "seed %llu: level %d, dtype %d, stored %d, heads %d/%d, sizes %d/%d, block %d, window %d, causal %d, "
                   "softcap %g, alibi %d, sinks %d, threads %d\n",
                   (unsigned long long)seed, c.level, c.cache.dtype, c.cache.stored, c.heads, c.cache.kv_heads,
                   c.cache.head_size, c.cache.head_size_v, c.cache.block_size, c.window, c.causal, c.softcap, c.alibi,
                   c.sinks, c.threads);
      return 1;
    }
    ++cases;
  }
  std::printf("%llu cases, none differs\n", (unsigned long long)cases);
  return 0;
}
