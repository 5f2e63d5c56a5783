// Threads: those of the OpenMP runtime that torch has loaded, or a pool of our own where there is none.
//
// Two runtimes would fight for the cores: the workers of both spin for a while after each parallel region. So the
// library links no OpenMP. It is given the entry point GOMP_parallel of the runtime in the process, which GNU's,
// LLVM's and Intel's all have, and its jobs run on the very threads that ran torch's last operator.
#include "team.h"

#include <pthread.h>
#include <sched.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "abi.h"

namespace bb {
namespace {

using GompParallel = void (*)(void (*)(void *), void *, unsigned, unsigned);

std::atomic<GompParallel> gomp_parallel{nullptr};

// Workers of a forked child do not exist there, neither ours nor the runtime's: it goes on with the one it has.
std::atomic<bool> forked{false};
const int watching_forks = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });

struct Binding {
  const int32_t *cpus;
  int32_t count;
  pthread_t caller;
  std::atomic<int32_t> next, bound;
};

void bind_worker(void *context) {
  Binding &binding = *static_cast<Binding *>(context);
  if (pthread_equal(pthread_self(), binding.caller)) return;
  const int32_t i = binding.next.fetch_add(1);
  if (i >= binding.count || binding.cpus[i] < 0 || binding.cpus[i] >= CPU_SETSIZE) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(binding.cpus[i], &one);
  if (sched_setaffinity(0, sizeof one, &one) == 0) binding.bound.fetch_add(1);
}

class Pool {
 public:
  void run(Job job, void *context, int threads) {
    // One region at a time; a second caller does its work alone rather than wait.
    std::unique_lock<std::mutex> region(region_, std::try_to_lock);
    if (!region.owns_lock()) return job(context);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      while (int(workers_.size()) < threads - 1) workers_.emplace_back([this, seen = round_] { work(seen); });
      job_ = job;
      context_ = context;
      seats_ = threads - 1;
      ++round_;
    }
    wake_.notify_all();
    job(context);
    std::unique_lock<std::mutex> lock(mutex_);
    seats_ = 0;  // who has not come yet finds nothing left to do
    idle_.wait(lock, [this] { return busy_ == 0; });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread &worker : workers_)
      if (forked.load())
        worker.detach();
      else
        worker.join();
  }

 private:
  void work(uint64_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
      if (seats_ == 0) continue;
      --seats_;
      ++busy_;
      const Job job = job_;
      void *const context = context_;
      lock.unlock();
      job(context);
      lock.lock();
      if (--busy_ == 0) idle_.notify_one();
    }
  }

  std::mutex region_, mutex_;
  std::condition_variable wake_, idle_;
  std::vector<std::thread> workers_;
  Job job_ = nullptr;
  void *context_ = nullptr;
  int seats_ = 0, busy_ = 0;
  uint64_t round_ = 0;
  bool stop_ = false;
};

}  // namespace

void run_team(Job job, void *context, int threads) {
  if (threads <= 1 || forked.load(std::memory_order_relaxed)) return job(context);
  if (const GompParallel parallel = gomp_parallel.load(std::memory_order_acquire))
    return parallel(job, context, unsigned(threads), 0);
  static Pool pool;
  pool.run(job, context, threads);
}

}  // namespace bb

extern "C" void bb_use_openmp(void *entry) {
  bb::gomp_parallel.store(reinterpret_cast<bb::GompParallel>(entry), std::memory_order_release);
}

extern "C" int32_t bb_bind_workers(const int32_t *cpus, int32_t count) {
  const bb::GompParallel parallel = bb::gomp_parallel.load(std::memory_order_acquire);
  if (!parallel || count < 2 || bb::forked.load()) return 0;
  bb::Binding binding{cpus, count, pthread_self(), {1}, {0}};
  parallel(bb::bind_worker, &binding, unsigned(count), 0);
  return binding.bound.load();
}
