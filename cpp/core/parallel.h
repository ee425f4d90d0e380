// Threads. parallel.cpp has the only OpenMP pragma of the project.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <type_traits>

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
using RangeFunction = void (*)(void* context, std::int64_t begin, std::int64_t end);
void parallel_for(std::int64_t count, std::int64_t grain, RangeFunction function, void* context);
}  // namespace detail

// Calls body(begin, end) on disjoint ranges that cover [0, count), one for each thread. No range is
// shorter than `grain` unless count is. body must not throw.
template <class Body>
void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
  using Callable = std::remove_reference_t<Body>;
  detail::parallel_for(
      count, grain,
      [](void* context, std::int64_t begin, std::int64_t end) {
        (*static_cast<Callable*>(context))(begin, end);
      },
      &body);
}

constexpr std::align_val_t scratch_alignment{64};

// Calls body(task, scratch) for every task. Tasks differ in cost, so a thread takes the next task
// when it has finished one.
template <class Body>
void for_each_task(std::int64_t tasks, std::int64_t scratch_bytes, Body&& body) {
  std::atomic<std::int64_t> next{0};
  const std::int64_t workers = std::min<std::int64_t>(num_threads(), tasks);
  parallel_for(workers, 1, [&](std::int64_t, std::int64_t) {
    void* scratch = ::operator new(scratch_bytes, scratch_alignment);
    for (std::int64_t task = next++; task < tasks; task = next++) body(task, scratch);
    ::operator delete(scratch, scratch_alignment);
  });
}

}  // namespace ntk_alibi
