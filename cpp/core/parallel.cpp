#include "core/parallel.h"

#include <algorithm>
#include <atomic>

#include "core/thread_sanitizer.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace ntk_alibi {
namespace {

std::atomic<int> chosen_threads{0};
std::atomic<bool> in_forked_child{false};

#ifdef _OPENMP
NTK_ALIBI_NOT_WATCHED
void run_shares(std::int64_t shares, std::int64_t count, detail::RangeFunction function,
                void* context) {
  ThreadEdge begun, done;
  begun.release();
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(shares))
  for (std::int64_t share = 0; share < shares; ++share) {
    begun.acquire();
    function(context, share * count / shares, (share + 1) * count / shares);
    done.release();
  }
  done.acquire();
}
#endif

}  // namespace

int num_threads() {
  if (in_forked_child) return 1;
  const int chosen = chosen_threads;
#ifdef _OPENMP
  return chosen > 0 ? chosen : omp_get_max_threads();
#else
  return chosen > 0 ? 1 : 1;
#endif
}

void set_num_threads(int threads) { chosen_threads = threads; }

void after_fork_in_child() { in_forked_child = true; }

bool forked() { return in_forked_child; }

void detail::parallel_for(std::int64_t count, std::int64_t grain, RangeFunction function,
                          void* context) {
  if (count <= 0) return;
  const std::int64_t shares =
      std::min<std::int64_t>(num_threads(), std::max<std::int64_t>(1, count / grain));
#ifdef _OPENMP
  if (shares > 1 && !omp_in_parallel()) return run_shares(shares, count, function, context);
#endif
  function(context, 0, count);
}

}  // namespace ntk_alibi
