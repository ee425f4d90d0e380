// Threads. parallel_for holds the only OpenMP pragma of the project.
#pragma once

#include <cstdint>
#include <type_traits>

namespace ntk_alibi {

// The number of threads the next parallel_for may use: what set_num_threads chose, else OpenMP's
// own default (OMP_NUM_THREADS), and 1 in a forked child.
int num_threads();

// Chooses the number of threads; 0 returns to OpenMP's default.
void set_num_threads(int threads);

// To be called in the child after fork(). OpenMP's thread pool does not survive a fork, and a
// parallel region entered there would wait for ever, so the child works on one thread.
void after_fork_in_child();
bool forked();

namespace detail {
using RangeFunction = void (*)(void* context, std::int64_t begin, std::int64_t end);
void parallel_for(std::int64_t count, std::int64_t grain, RangeFunction function, void* context);
}  // namespace detail

// Calls body(begin, end) on disjoint ranges that cover [0, count), one contiguous share a thread
// and none shorter than `grain` unless count is. body must not throw.
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

}  // namespace ntk_alibi
