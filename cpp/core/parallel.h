// Threads. parallel.cpp has the only OpenMP pragma of the project.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

#include "core/cancellation.h"

namespace ntk_alibi {

// The number of threads that the next parallel_for may use: the choice of set_num_threads, else
// OpenMP's default (OMP_NUM_THREADS); 1 in a forked child.
int num_threads();

// Chooses the number of threads; 0 returns to OpenMP's default.
void set_num_threads(int threads);

// The child calls this after fork(). OpenMP's thread pool does not survive a fork, and a parallel
// region in the child would wait for ever, so the child works on one thread.
void after_fork_in_child();
bool forked();

namespace detail {
using RangeFunction = void (*)(void* context, std::int64_t begin, std::int64_t end,
                               Cancellation& cancellation);
void parallel_for(std::int64_t count, std::int64_t grain, RangeFunction function, void* context);
}  // namespace detail

// Calls body(begin, end, cancellation) on disjoint ranges that cover [0, count), one for each
// thread. No range is shorter than `grain` unless count is. A body returns early if the
// cancellation is requested; a range that takes long asks for it. Throws what a body or the
// interrupt check threw.
template <class Body>
void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
  using Callable = std::remove_reference_t<Body>;
  detail::parallel_for(
      count, grain,
      [](void* context, std::int64_t begin, std::int64_t end, Cancellation& cancellation) {
        (*static_cast<Callable*>(context))(begin, end, cancellation);
      },
      &body);
}

// Calls body(i) for every i in [0, count), in ranges as above.
template <class Body>
void parallel_for_each(std::int64_t count, std::int64_t grain, Body&& body) {
  parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end, Cancellation& cancellation) {
    for (std::int64_t i = begin; i < end && !cancellation.requested(); ++i) body(i);
  });
}

// Memory that a thread works in. Kernels want it aligned.
class ScratchMemory {
 public:
  explicit ScratchMemory(std::int64_t bytes) : data_(::operator new(bytes, alignment)) {}
  void* data() const { return data_.get(); }

 private:
  static constexpr std::align_val_t alignment{64};
  struct Delete {
    void operator()(void* data) const { ::operator delete(data, alignment); }
  };
  std::unique_ptr<void, Delete> data_;
};

// The number of tasks, of so many multiply-adds each, for which a thread is worth waking: it takes
// as long as 10 microseconds of work.
inline std::int64_t tasks_per_thread(std::int64_t multiply_adds) {
  constexpr std::int64_t least_multiply_adds = 1 << 17;
  return 1 + least_multiply_adds / (1 + multiply_adds);
}

// Calls body(task, scratch, stop) for every task, with the cancellation as kernels take it. Tasks
// differ in cost, so a thread takes the next task when it has finished one. A thread is used for
// every `grain` tasks.
template <class Body>
void for_each_task(std::int64_t tasks, std::int64_t grain, std::int64_t scratch_bytes,
                   Body&& body) {
  std::atomic<std::int64_t> next{0};
  const std::int64_t most = tasks > 0 ? std::max<std::int64_t>(1, tasks / grain) : 0;
  const std::int64_t workers = std::min<std::int64_t>(num_threads(), most);
  parallel_for(workers, 1, [&](std::int64_t, std::int64_t, Cancellation& cancellation) {
    const ScratchMemory scratch(scratch_bytes);
    const StopCheck stop = cancellation.for_kernels();
    for (std::int64_t task = next++; task < tasks && !cancellation.requested(); task = next++)
      body(task, scratch.data(), stop);
  });
}

}  // namespace ntk_alibi
