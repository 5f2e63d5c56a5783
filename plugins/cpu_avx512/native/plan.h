// The work of one step, in items that threads take from a counter.
#ifndef BASEBOARD_CPU_PLAN_H
#define BASEBOARD_CPU_PLAN_H

#include <atomic>
#include <memory>
#include <vector>

#include "kernels.h"

struct bb_plan {
  std::vector<bb::Item> items;  // the most expensive first
  std::vector<bb::Group> groups;
  std::unique_ptr<std::atomic<int32_t>[]> pending;  // parts of each group that are still to come
  std::vector<float> partials;
  int32_t window = 0, causal = 1;
};

#endif
