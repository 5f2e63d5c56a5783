// The entry points that run kernels: picks the level, shares the work out. Baseline x86-64 code.
#include <cstdlib>
#include <memory>

#include "plan.h"
#include "team.h"

namespace bb {
namespace {

const Kernels *kernels_of(int32_t level) {
  if (level > bb_host_level()) return nullptr;
  switch (level) {
    case BB_LEVEL_AVX2: return &kernels_avx2;
    case BB_LEVEL_AVX512: return &kernels_avx512;
    case BB_LEVEL_AVX512_VNNI: return &kernels_avx512_vnni;
    case BB_LEVEL_AVX512_BF16: return &kernels_avx512_bf16;
    case BB_LEVEL_AVX512_AMX: return &kernels_avx512_amx;
    default: return nullptr;
  }
}

struct Free {
  void operator()(void *memory) const { std::free(memory); }
};

// Made when a thread first attends, given back when it ends; null when there is no memory left.
Scratch *scratch() {
  thread_local std::unique_ptr<Scratch, Free> mine;
  if (!mine) mine.reset(static_cast<Scratch *>(std::aligned_alloc(alignof(Scratch), sizeof(Scratch))));
  return mine.get();
}

struct Step {
  const bb_attend_args *args;
  const Kernels *kernels;
  std::atomic<int64_t> next{0};
  std::atomic<bool> out_of_memory{false};
};

void take_items(void *context) {
  Step &step = *static_cast<Step *>(context);
  bb_plan &plan = *step.args->plan;
  Scratch *const memory = scratch();
  if (!memory) {
    step.out_of_memory.store(true);
    return;
  }
  for (;;) {
    const int64_t at = step.next.fetch_add(1, std::memory_order_relaxed);
    if (at >= int64_t(plan.items.size())) return;
    const Item &item = plan.items[size_t(at)];
    step.kernels->attend(step.args, plan.window, plan.causal, &item, plan.partials.data(), memory);
    if (item.group < 0) continue;
    // Whoever finishes the last part adds them up, always in the order of the keys: the sum does not depend on time.
    std::atomic<int32_t> &pending = plan.pending[size_t(item.group)];
    if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      const Group &group = plan.groups[size_t(item.group)];
      pending.store(group.parts, std::memory_order_relaxed);
      step.kernels->reduce(step.args, &group, plan.partials.data(), memory);
    }
  }
}

// Rows of an operator that are worth a thread's while.
int64_t grain(int64_t size) { return 1 + 16384 / (size + 1); }

}  // namespace
}  // namespace bb

extern "C" int32_t bb_attend(const bb_attend_args *args) {
  bb::Step step;
  step.args = args;
  step.kernels = bb::kernels_of(args->level);
  if (!step.kernels) return BB_BAD_LEVEL;
  const int64_t items = int64_t(args->plan->items.size());
  bb::run_team(bb::take_items, &step, int(items < args->threads ? items : args->threads));
  // A thread without memory takes no item; only if none had any is something left undone.
  return step.out_of_memory.load() && step.next.load() < items ? BB_NO_MEMORY : BB_OK;
}

extern "C" int32_t bb_write(const bb_write_args *args) {
  const bb::Kernels *kernels = bb::kernels_of(args->level);
  if (!kernels) return BB_BAD_LEVEL;
  const bb_cache &cache = *args->cache;
  const int64_t size = int64_t(cache.kv_heads) * (cache.head_size + cache.head_size_v);
  bb::for_range(args->tokens, bb::grain(size), args->threads,
                [&](int64_t begin, int64_t end) { kernels->write(args, begin, end); });
  return BB_OK;
}

extern "C" int32_t bb_rms_norm(const bb_norm_args *args) {
  const bb::Kernels *kernels = bb::kernels_of(args->level);
  if (!kernels) return BB_BAD_LEVEL;
  bb::for_range(args->rows, bb::grain(args->size), args->threads,
                [&](int64_t begin, int64_t end) { kernels->rms_norm(args, begin, end); });
  return BB_OK;
}

extern "C" int32_t bb_silu_and_mul(const bb_gate_args *args) {
  const bb::Kernels *kernels = bb::kernels_of(args->level);
  if (!kernels) return BB_BAD_LEVEL;
  bb::for_range(args->rows, bb::grain(2 * args->size), args->threads,
                [&](int64_t begin, int64_t end) { kernels->silu_and_mul(args, begin, end); });
  return BB_OK;
}

extern "C" int32_t bb_rotary_embedding(const bb_rotary_args *args) {
  const bb::Kernels *kernels = bb::kernels_of(args->level);
  if (!kernels) return BB_BAD_LEVEL;
  const int64_t size = int64_t(args->heads + args->kv_heads) * args->rotary_size;
  bb::for_range(args->tokens, bb::grain(size), args->threads,
                [&](int64_t begin, int64_t end) { kernels->rotary_embedding(args, begin, end); });
  return BB_OK;
}
