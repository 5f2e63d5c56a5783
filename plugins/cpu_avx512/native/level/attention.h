// One work item: some query rows against a range of keys of one sequence.
#ifndef BASEBOARD_CPU_ATTENTION_H
#define BASEBOARD_CPU_ATTENTION_H

#include "amx.h"
#include "products.h"
#include "softmax.h"

namespace {

using bb::Group;
using bb::Item;
using bb::kMaxHead;
using bb::kMaxRows;
using bb::kPanel;
using bb::kTile;
using bb::Scratch;

// Where the keys and values of one head of one sequence lie.
struct Pages {
  const bb_cache &cache;
  const int32_t *table;
  int kv_head;
  BB_INLINE const char *head(int64_t key) const {
    const int64_t block = table[key / cache.block_size];
    return cache.base + block * cache.block_stride + kv_head * cache.head_stride;
  }
  // The run of `run` keys from `key` on, a multiple of it.
  BB_INLINE const char *keys(int64_t key, int64_t bytes) const {
    return head(key) + key % cache.block_size * cache.head_size * bytes;
  }
  BB_INLINE const char *values(int64_t key, int64_t bytes) const {
    return head(key) + cache.value_offset + key % cache.block_size * cache.head_size_v * bytes;
  }
  BB_INLINE const float *scales(int64_t key) const {
    return reinterpret_cast<const float *>(head(key) + cache.scale_offset) + key % cache.block_size;
  }
};

// A tile of keys: from `start`, a multiple of 16, to `stop`. Keys before `begin` and from `end` on are not the item's.
struct Tile {
  int64_t start, stop, begin, end;
  int count;                                  // of eights
  const char *panels[kTile / kPanel];
  const char *eights[kTile / 8];
  const char *values[kTile / kPanel];         // of each panel, to be fetched while it is scored
  const char *next[kTile / 8];                // keys of the next tile, to be fetched while this one's values are weighed
};

// Values next to the item's own may belong to nobody and hold anything: they are replaced by zeros, since a weight of
// zero times NaN would be NaN.
template <class E>
const char *own_values(const Pages &pages, int64_t key, int64_t begin, int64_t end, char *to) {
  const int64_t size = pages.cache.head_size_v * E::kBytes;
  const int64_t from = key < begin ? begin - key : 0, until = end - key < 8 ? end - key : 8;
  memset(to, 0, size_t(8 * size));
  if (from >= until) return to;
  const char *const source = pages.values(key, E::kBytes);
  for (int64_t t = from; t < until; ++t) {
    if constexpr (E::kPair == 1) {
      memcpy(to + t * size, source + t * size, size_t(size));
    } else {
      const int64_t pair = t / 2 * 2 * size + t % 2 * E::kBytes;
      for (int64_t d = 0; d < pages.cache.head_size_v; ++d)
        memcpy(to + pair + d * 2 * E::kBytes, source + pair + d * 2 * E::kBytes, E::kBytes);
    }
  }
  return to;
}

// Blocks of eight keys have panels of eight: two of them side by side make one of sixteen.
template <class E>
const char *joined_panel(const Pages &pages, const Tile &tile, int64_t key, char *to) {
  constexpr int64_t kRun = 8 * E::kPair * E::kBytes;
  const int64_t steps = pages.cache.head_size / E::kPair;
  for (int half = 0; half < 2; ++half, key += 8) {
    const bool ours = key < tile.end && key + 8 > tile.begin;
    const char *const source = ours ? pages.keys(key, E::kBytes) : nullptr;
    for (int64_t i = 0; i < steps; ++i) {
      char *const run = to + (2 * i + half) * kRun;
      if (ours)
        memcpy(run, source + i * kRun, kRun);
      else
        memset(run, 0, kRun);
    }
  }
  return to;
}

template <class E>
void find_tile(const Pages &pages, Tile &tile, Scratch &s) {
  char *edge = s.edges, *panel = s.panels;
  const int64_t panel_bytes = int64_t(kPanel) * pages.cache.head_size * E::kBytes;
  int count = 0;
  for (int64_t key = tile.start; key < tile.stop; key += kPanel, panel += panel_bytes)
    tile.panels[count++] = pages.cache.block_size >= kPanel ? pages.keys(key, E::kBytes)
                                                            : joined_panel<E>(pages, tile, key, panel);
  tile.count = 0;
  for (int64_t key = tile.start; key < tile.stop; key += 8) {
    const bool whole = key >= tile.begin && key + 8 <= tile.end;
    tile.eights[tile.count++] =
        whole ? pages.values(key, E::kBytes) : own_values<E>(pages, key, tile.begin, tile.end, edge);
    if (!whole) edge += 8 * pages.cache.head_size_v * E::kBytes;
  }
  for (int i = 0; i < count; ++i) tile.values[i] = tile.eights[2 * i];
  for (int i = 0; i < tile.count; ++i) {
    const int64_t key = tile.start + kTile + 8 * i;
    tile.next[i] = key < tile.end ? pages.keys(key, E::kBytes) : tile.eights[i];
  }
}

// Scales of the tile's keys and values; 0 for what is not the item's.
void find_scales(const Pages &pages, const Tile &tile, Scratch &s) {
  const int64_t stop = (tile.stop + kPanel - 1) / kPanel * kPanel;  // rows are as wide: 0 * what lay there could be NaN
  for (int64_t key = tile.start; key < stop; key += 8) {
    float *const of_keys = s.key_scales + (key - tile.start), *const of_values = s.value_scales + (key - tile.start);
    if (key >= tile.begin && key + 8 <= tile.end) {
      memcpy(of_keys, pages.scales(key), 32);
      memcpy(of_values, pages.scales(key) + pages.cache.block_size, 32);
      continue;
    }
    for (int i = 0; i < 8; ++i) {
      const bool ours = key + i >= tile.begin && key + i < tile.end;
      of_keys[i] = ours ? pages.scales(key)[i] : 0.0f;
      of_values[i] = ours ? pages.scales(key)[pages.cache.block_size + i] : 0.0f;
    }
  }
}

struct Rows {
  const bb_attend_args *args;
  const Item *item;
  int window, causal, count;
  BB_INLINE int64_t token(int r) const { return item->first_token + item->query_begin + r / item->heads; }
  BB_INLINE int head(int r) const { return item->head_begin + r % item->heads; }
  BB_INLINE int64_t position(int r) const { return int64_t(item->position) + r / item->heads; }
};

template <class E>
void load_queries(const Rows &rows, int64_t stride, Scratch &s) {
  const bb_attend_args &a = *rows.args;
  const int32_t dtype = a.cache->dtype;
  typename E::Number *const numbers = reinterpret_cast<typename E::Number *>(s.query);
  for (int r = 0; r < rows.count; ++r) {
    const int64_t at = rows.token(r) * a.query_token + rows.head(r) * a.query_head;
    load_row(s.row, static_cast<const char *>(a.query) + at * element_size(dtype), dtype, a.cache->head_size);
    for (int64_t d = a.cache->head_size; d < stride; ++d) s.row[d] = 0.0f;
    s.query_unit[r] = Pack<typename E::Number>::row(numbers + r * stride, s.row, int(stride));
  }
}

template <class E>
BB_INLINE Row row_of(const Rows &rows, int r, const Tile &tile, const Logits &logits, const Scratch &s) {
  const int width = int((tile.stop - tile.start + E::kDeep - 1) / E::kDeep * E::kDeep);
  const int64_t p = rows.position(r);
  int64_t begin = rows.window ? p - rows.window + 1 : 0, end = rows.causal ? p + 1 : rows.item->seq_len;
  begin = (begin > tile.begin ? begin : tile.begin) - tile.start;
  end = (end < tile.stop ? end : tile.stop) - tile.start;
  begin = begin > 0 ? begin : 0;
  end = end > begin ? end : begin;
  if (begin > width) begin = end = 0;
  return {int(begin), int(end), width, float(tile.start - p), logits.slopes ? logits.slopes[rows.head(r)] : 0.0f,
          E::kScaled ? s.key_scales : nullptr, s.query_unit[r]};
}

// Weights of `count` rows from `first` on, whose scores are the first in the scratch memory. Rows take each step together,
// so that none has to wait for its own results.
template <class E, bool kRaw>
void weigh_band(const Rows &rows, int first, int count, const Tile &tile, const Logits &logits, Scratch &s) {
  const float factor = kRaw ? logits.scale * kLog2e : 1.0f;
  alignas(64) float top[E::kBand], off[E::kBand];
  Row shown[E::kBand];
  for (int i = 0; i < count; ++i) {
    shown[i] = row_of<E>(rows, first + i, tile, logits, s);
    top[i] = logits_of<kRaw>(s.scores + int64_t(i) * kTile, logits, shown[i]);
  }
  for (int i = count; i % kLanes; ++i) top[i] = -kInfinity;
  raise_maxima(top, factor, count, s.highest + first, off, s.decay + first);
  for (int i = 0; i < count; ++i) {
    const int r = first + i;
    float *const x = s.scores + int64_t(i) * kTile;
    auto *const to = weights_of_row<E>(s, i);
    s.sums[r] = s.sums[r] * s.decay[r] + weights_of(x, to, shown[i], factor, off[i]);
    s.unit[r] = 1.0f;
    if constexpr (E::kScaled) {
      for (int k = 0; k < shown[i].width; k += kLanes) store(x + k, load(x + k) * load(s.value_scales + k));
      s.unit[r] = Pack<typename E::Number>::row(to, x, shown[i].width);
    }
  }
}

template <class E>
void weigh_rows(const Rows &rows, int first, int count, const Tile &tile, const Logits &logits, Scratch &s) {
  if (!E::kScaled && logits.plain && logits.scale > 0.0f) return weigh_band<E, true>(rows, first, count, tile, logits, s);
  weigh_band<E, false>(rows, first, count, tile, logits, s);
}

// Results from sums: out = sums / (sum of weights + sink). A row that has seen nothing gives zeros.
void finish(const Rows &rows, Scratch &s) {
  const bb_attend_args &a = *rows.args;
  const int size = a.cache->head_size_v;
  for (int r = 0; r < rows.count; ++r) {
    float *const row = s.out + int64_t(r) * kMaxHead;
    float factor = 0.0f;
    if (s.sums[r] > 0.0f && !a.sinks) factor = 1.0f / s.sums[r];
    if (s.sums[r] > 0.0f && a.sinks) {
      const float sink = a.sinks[rows.head(r)] * kLog2e;
      const float top = sink > s.highest[r] ? sink : s.highest[r];
      const float mine = __builtin_exp2f(s.highest[r] - top);
      factor = mine / (s.sums[r] * mine + __builtin_exp2f(sink - top));
    }
    if (s.sums[r] != s.sums[r]) factor = s.sums[r];  // NaN in the sequence's own keys is shown, not hidden
    for (int d = 0; d < size; d += kLanes) store(row + d, load(row + d) * all(factor));
    const int64_t at = rows.token(r) * a.out_token + rows.head(r) * a.out_head;
    store_row(static_cast<char *>(a.out) + at * element_size(a.cache->dtype), row, a.cache->dtype, size);
  }
}

void store_partial(const Rows &rows, float *to, const Scratch &s) {
  const int64_t padded = (rows.args->cache->head_size_v + 15) / 16 * 16;
  for (int r = 0; r < rows.count; ++r) memcpy(to + r * padded, s.out + int64_t(r) * kMaxHead, size_t(padded) * 4);
  memcpy(to + rows.count * padded, s.highest, size_t(rows.count) * 4);
  memcpy(to + rows.count * (padded + 1), s.sums, size_t(rows.count) * 4);
}

void start_rows(int count, int64_t padded, Scratch &s) {
  for (int r = 0; r < count; ++r) {
    s.highest[r] = -kInfinity;
    s.sums[r] = 0.0f;
    memset(s.out + int64_t(r) * kMaxHead, 0, size_t(padded) * 4);
  }
}

template <class E>
void attend_item(const Rows &rows, float *partials, Scratch &s) {
  const bb_attend_args &a = *rows.args;
  const Item &item = *rows.item;
  const bb_cache &cache = *a.cache;
  const Pages pages{cache, a.block_tables + item.sequence * a.table_stride, item.kv_head};
  const Logits logits{a.scale, a.softcap, a.slopes, !a.slopes && !(a.softcap > 0.0f)};
  const int64_t stride = (cache.head_size + 15) / 16 * 16;
  load_queries<E>(rows, stride, s);
  const auto *const query = reinterpret_cast<const typename E::Number *>(s.query);
  start_rows(rows.count, (cache.head_size_v + 15) / 16 * 16, s);
  Tile tile;
  tile.begin = item.key_begin;
  tile.end = item.key_end;
  for (tile.start = tile.begin / kPanel * kPanel; tile.start < tile.end; tile.start += kTile) {
    tile.stop = tile.start + kTile < tile.end ? tile.start + kTile : tile.end;
    find_tile<E>(pages, tile, s);
    if constexpr (E::kScaled) find_scales(pages, tile, s);
    const int panels = int((tile.stop - tile.start + kPanel - 1) / kPanel);
    const Values values{tile.eights, tile.next, tile.count, int64_t(cache.head_size_v) * E::kPair * E::kBytes};
    const auto &arranged = E::arranged(values, s);
    for (int first = 0; first < rows.count; first += E::kBand) {
      const int count = rows.count - first < E::kBand ? rows.count - first : E::kBand;
      score<E>(tile.panels, panels, first == 0 ? tile.values : nullptr, cache.head_size, count, query + first * stride,
               stride, s.scores);
      weigh_rows<E>(rows, first, count, tile, logits, s);
      weigh<E>(arranged, cache.head_size_v, first, count, s);
    }
  }
  if (item.group < 0)
    finish(rows, s);
  else
    store_partial(rows, partials + item.partial, s);
}

void attend_bfloat16(const Rows &rows, float *partials, Scratch &s) {
#if BB_LEVEL >= 5
  if (bb::fills_tiles(rows.args->cache->head_size, rows.args->cache->head_size_v)) {
    attend_item<Bfloat16Tiles>(rows, partials, s);
    return _tile_release();  // or every switch of this thread would save the tiles
  }
#endif
#if BB_LEVEL == 4
  attend_item<Bfloat16Dot>(rows, partials, s);
#else
  attend_item<Bfloat16>(rows, partials, s);
#endif
}

void attend(const bb_attend_args *args, int32_t window, int32_t causal, const Item *item, float *partials,
            Scratch *s) {
  const Rows rows{args, item, window, causal, item->queries * item->heads};
  switch (args->cache->stored) {
    case BB_FLOAT32: return attend_item<Float32>(rows, partials, *s);
    case BB_FLOAT16: return attend_item<Float16>(rows, partials, *s);
    case BB_INT8: return attend_item<Int8>(rows, partials, *s);
    case BB_BFLOAT16: return attend_bfloat16(rows, partials, *s);
  }
}

// Adds up the parts of a group, in the order of their keys.
void reduce(const bb_attend_args *args, const Group *group, const float *partials, Scratch *s) {
  const Rows rows{args, &group->first, 0, 0, group->first.queries * group->first.heads};
  const int64_t padded = (args->cache->head_size_v + 15) / 16 * 16;
  start_rows(rows.count, padded, *s);
  const float *part = partials + group->first.partial;
  for (int32_t i = 0; i < group->parts; ++i, part += group->stride) {
    for (int r = 0; r < rows.count; ++r) {
      const float highest = part[rows.count * padded + r], sum = part[rows.count * (padded + 1) + r];
      if (sum == 0.0f) continue;  // this part saw nothing of the row's
      const float top = highest > s->highest[r] ? highest : s->highest[r];
      const float old = __builtin_exp2f(s->highest[r] - top), fresh = __builtin_exp2f(highest - top);
      s->highest[r] = top;
      s->sums[r] = s->sums[r] * old + sum * fresh;
      float *const row = s->out + int64_t(r) * kMaxHead;
      for (int64_t d = 0; d < padded; d += kLanes)
        store(row + d, fma(load(row + d), all(old), load(part + r * padded + d) * all(fresh)));
    }
  }
  finish(rows, *s);
}

}  // namespace
#endif
