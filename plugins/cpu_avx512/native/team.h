// Runs one function on several threads at once.
#ifndef BASEBOARD_CPU_TEAM_H
#define BASEBOARD_CPU_TEAM_H

#include <atomic>
#include <cstdint>

namespace bb {

using Job = void (*)(void *);

// Calls job(context) on `threads` threads, the caller's among them, and returns when all have returned.
// Jobs share work by taking items from a counter, so that it does not matter how many threads really come.
void run_team(Job job, void *context, int threads);

// Splits [0, count) into pieces of `grain` and has body(begin, end) called for each of them.
template <class Body>
void for_range(int64_t count, int64_t grain, int threads, const Body &body) {
  if (threads <= 1 || count <= grain) {
    if (count > 0) body(int64_t(0), count);
    return;
  }
  struct Shared {
    const Body &body;
    int64_t count, grain;
    std::atomic<int64_t> next;
  } shared{body, count, grain, {0}};
  run_team(
      [](void *context) {
        Shared &s = *static_cast<Shared *>(context);
        for (;;) {
          const int64_t begin = s.next.fetch_add(s.grain, std::memory_order_relaxed);
          if (begin >= s.count) return;
          s.body(begin, begin + s.grain < s.count ? begin + s.grain : s.count);
        }
      },
      &shared, threads);
}

}  // namespace bb
#endif
