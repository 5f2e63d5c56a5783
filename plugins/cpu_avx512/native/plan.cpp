// Cuts a step into items: rows that share keys together, as many as the second-level cache bears; long contexts in
// parts where there would be too few items for the threads.
#include "plan.h"

#include <unistd.h>

#include <algorithm>
#include <new>

namespace bb {
namespace {

constexpr int kItemsPerThread = 8;  // enough that the last one to finish does not keep the others waiting for long
constexpr int64_t kRowCost = 8;     // loading a key costs about as much as scoring it for so many rows

int64_t second_level_cache() {
  const long size = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return size > 0 ? size : 512 * 1024;
}

// Rows whose queries, scores and results fit into half of the second-level cache beside a tile of keys and values. AMX
// tiles score a band of rows at a time, and compute so fast that more rows have to share what is read.
int rows_at_once(const bb_plan_args &args) {
  const int64_t sizes = args.head_size + args.head_size_v;
  const int64_t element = args.stored == BB_FLOAT32 ? 4 : args.stored == BB_INT8 ? 1 : 2;
  const int64_t left = second_level_cache() / 2 - kTile * sizes * element;
  if (args.level >= BB_LEVEL_AVX512_AMX && args.stored == BB_BFLOAT16 && fills_tiles(args.head_size, args.head_size_v)) {
    const int64_t rows = (left - int64_t(kTileBand) * kTile * 6) / (4 * args.head_size_v + 2 * args.head_size);
    return int(std::clamp<int64_t>(rows / kTileBand * kTileBand, kTileBand, kMaxRows));
  }
  const int64_t rows = left / (4 * (kTile + sizes));
  return int(std::clamp<int64_t>(rows / 12 * 12, 24, kBand));
}

int64_t cost(const Item &item) {
  return (int64_t(item.queries) * item.heads + kRowCost) * (item.key_end - item.key_begin + kPanel);
}

// The keys that the first of the item's rows and the last of them see, and those between.
void clip_keys(Item &item, const bb_plan_args &args) {
  const int64_t last = int64_t(item.position) + item.queries - 1;
  const int64_t end = args.causal ? std::min<int64_t>(last + 1, item.seq_len) : item.seq_len;
  const int64_t begin = args.window ? int64_t(item.position) - args.window + 1 : 0;
  item.key_begin = int32_t(std::max<int64_t>(begin, 0));
  item.key_end = int32_t(std::max<int64_t>(end, item.key_begin));
}

void add_sequence(std::vector<Item> &items, const bb_plan_args &args, int64_t sequence, int rows) {
  const int32_t first = args.query_start[sequence], count = args.query_start[sequence + 1] - first;
  const int ratio = args.heads / args.kv_heads;
  const int heads = std::min(ratio, rows), queries = std::max(1, rows / heads);
  Item item{};
  item.sequence = int32_t(sequence);
  item.first_token = first;
  item.seq_len = args.seq_lens[sequence];
  item.group = -1;
  for (item.query_begin = 0; item.query_begin < count; item.query_begin += queries) {
    item.queries = std::min(queries, count - item.query_begin);
    item.position = item.seq_len - count + item.query_begin;
    clip_keys(item, args);
    for (item.kv_head = 0; item.kv_head < args.kv_heads; ++item.kv_head) {
      const int end = (item.kv_head + 1) * ratio;
      for (item.head_begin = item.kv_head * ratio; item.head_begin < end; item.head_begin += heads) {
        item.heads = std::min(heads, end - item.head_begin);
        items.push_back(item);
      }
    }
  }
}

// Replaces items that cost more than `limit` by parts, each with a range of their keys.
void split(bb_plan &plan, int64_t limit, int64_t padded) {
  std::vector<Item> whole;
  whole.swap(plan.items);
  int64_t floats = 0;
  for (const Item &item : whole) {
    const int64_t keys = item.key_end - item.key_begin;
    const int64_t parts = std::min<int64_t>((cost(item) + limit - 1) / limit, (keys + kTile - 1) / kTile);
    if (parts < 2) {
      plan.items.push_back(item);
      continue;
    }
    const int64_t rows = int64_t(item.queries) * item.heads;
    const int64_t length = ((keys + parts - 1) / parts + kPanel - 1) / kPanel * kPanel;
    Group group{item, 0, rows * (padded + 2)};
    group.first.partial = floats;
    for (int64_t at = 0; at < keys; at += length, ++group.parts, floats += group.stride) {
      Item part = item;
      part.key_begin = int32_t(item.key_begin + at);
      part.key_end = int32_t(std::min<int64_t>(part.key_begin + length, item.key_end));
      part.group = int32_t(plan.groups.size());
      part.partial = floats;
      plan.items.push_back(part);
    }
    plan.groups.push_back(group);
  }
  plan.partials.resize(size_t(floats));
}

void fill(bb_plan &plan, const bb_plan_args &args) {
  const int rows = rows_at_once(args);
  for (int64_t s = 0; s < args.sequences; ++s) add_sequence(plan.items, args, s, rows);
  int64_t total = 0;
  for (const Item &item : plan.items) total += cost(item);
  if (args.threads > 1) {
    const int64_t padded = (args.head_size_v + 15) / 16 * 16;
    split(plan, std::max<int64_t>(total / (args.threads * kItemsPerThread), 1), padded);
    std::stable_sort(plan.items.begin(), plan.items.end(),
                     [](const Item &a, const Item &b) { return cost(a) > cost(b); });
  }
  plan.pending.reset(new std::atomic<int32_t>[plan.groups.size()]);
  for (size_t i = 0; i < plan.groups.size(); ++i) plan.pending[i].store(plan.groups[i].parts);
}

}  // namespace
}  // namespace bb

extern "C" int32_t bb_plan_create(const bb_plan_args *args, bb_plan **out) try {
  std::unique_ptr<bb_plan> plan(new bb_plan);
  plan->window = args->window;
  plan->causal = args->causal;
  bb::fill(*plan, *args);
  *out = plan.release();
  return BB_OK;
} catch (const std::bad_alloc &) {
  return BB_NO_MEMORY;
}

extern "C" void bb_plan_destroy(bb_plan *plan) { delete plan; }

extern "C" int64_t bb_plan_items(const bb_plan *plan) { return int64_t(plan->items.size()); }
