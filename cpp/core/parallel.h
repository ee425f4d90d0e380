// Threads. parallel.cpp has the only OpenMP pragma of the project.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "core/cancellation.h"
#include "core/flush_to_zero.h"

namespace ntk_alibi {

// The number of threads that the next parallel_for may use: the choice of set_num_threads, else
// OpenMP's default (OMP_NUM_THREADS, else one a processor); 1 in a forked child.
int num_threads();

// Chooses the number of threads; 0 returns to OpenMP's default.
void set_num_threads(int threads);

// The child calls this after fork(). No thread pool survives a fork, and a parallel region in
// the child would wait for ever, so the child works on one thread.
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

struct ScratchSize {
  std::int64_t bytes;
  std::int64_t zeroed;  // this many of them, the first ones, are 0 at the start
};

// Memory that a thread works in. Kernels want it aligned.
class ScratchMemory {
 public:
  explicit ScratchMemory(ScratchSize size) : data_(::operator new(size.bytes, alignment)) {
    std::memset(data_.get(), 0, size.zeroed);
  }
  void* data() const { return data_.get(); }

 private:
  static constexpr std::align_val_t alignment{64};
  struct Delete {
    void operator()(void* data) const { ::operator delete(data, alignment); }
  };
  std::unique_ptr<void, Delete> data_;
};

// How threads share tasks that differ in cost.
enum class TaskOrder {
  // A thread begins with a range of its own, and then helps the others. Neighbouring tasks read the
  // same memory, which would else wander between the caches of two threads.
  neighbours_together,
  // All threads take tasks from one list. The caller has put the costliest first.
  as_listed
};

struct Tasks {
  std::int64_t count;
  std::int64_t grain;  // a thread is used for every `grain` tasks
  TaskOrder order;
};

// The number of tasks, of so many multiply-adds each, for which a thread is worth waking: it takes
// as long as 10 microseconds of work.
inline std::int64_t tasks_per_thread(std::int64_t multiply_adds) {
  constexpr std::int64_t least_multiply_adds = 1 << 17;
  return 1 + least_multiply_adds / (1 + multiply_adds);
}

// Calls body(task, scratch, stop) for every task, with the cancellation as kernels take it. Results
// below the normal range are 0 in a body.
template <class Body>
void for_each_task(Tasks tasks, ScratchSize scratch_size, Body&& body) {
  if (tasks.count == 0) return;
  struct alignas(64) Range {
    std::atomic<std::int64_t> next;
    std::int64_t end;
  };
  const std::int64_t most = std::max<std::int64_t>(1, tasks.count / tasks.grain);
  const std::int64_t workers = std::min<std::int64_t>(num_threads(), most);
  const std::int64_t count = tasks.order == TaskOrder::as_listed ? 1 : workers;
  std::vector<Range> ranges(count);
  for (std::int64_t r = 0; r < count; ++r) {
    ranges[r].next = r * tasks.count / count;
    ranges[r].end = (r + 1) * tasks.count / count;
  }
  parallel_for(workers, 1, [&](std::int64_t worker, std::int64_t, Cancellation& cancellation) {
    const ScratchMemory scratch(scratch_size);
    const FlushToZero flushing(true);
    const StopCheck stop = cancellation.for_kernels();
    for (std::int64_t r = 0; r < count; ++r) {
      Range& range = ranges[(worker + r) % count];
      for (std::int64_t task = range.next++; task < range.end && !cancellation.requested();
           task = range.next++)
        body(task, scratch.data(), stop);
    }
  });
}

}  // namespace ntk_alibi
