#include "core/parallel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/thread_sanitizer.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace ntk_alibi {
namespace {

std::atomic<int> chosen_threads{0};
std::atomic<bool> in_forked_child{false};

#ifdef _OPENMP

// Returns how many threads can be started, up to `wanted`. OpenMP libraries end the process if they
// cannot start one; the memory of these threads' stacks is there for OpenMP's threads afterwards.
int startable_threads(int wanted) {
  std::vector<std::thread> threads;
  std::mutex gate;
  try {
    const std::lock_guard<std::mutex> closed(gate);  // all threads exist at the same time
    threads.reserve(wanted);
    while (static_cast<int>(threads.size()) < wanted)
      threads.emplace_back([&gate] { const std::lock_guard<std::mutex> open(gate); });
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
  for (std::thread& thread : threads) thread.join();
  return static_cast<int>(threads.size());
}

// The size of a new team of threads. Teams always have all threads, also for fewer shares: OpenMP
// libraries end the threads of a larger team before, and would have to start them again.
int team_size() {
  thread_local int existing = 1;  // OpenMP keeps a team for each thread that enters regions
  const int wanted = num_threads();
  if (wanted > existing)
    existing += startable_threads(wanted - existing);
  else
    existing = wanted;
  return existing;
}
#endif

// Lets the thread that entered a region wait until all shares are done, able to stop the others.
class Countdown {
 public:
  explicit Countdown(std::int64_t shares) : left_(shares) {}
  void finish_one() { left_.fetch_sub(1, std::memory_order_release); }
  void wait(Cancellation& cancellation) const {
    constexpr int polls = 2000;
    constexpr std::chrono::milliseconds busy{1};
    constexpr std::chrono::microseconds nap{100};
    for (int poll = 0; poll < polls; ++poll)
      if (left_.load(std::memory_order_acquire) == 0) return;
    const auto begin = std::chrono::steady_clock::now();
    while (left_.load(std::memory_order_acquire) > 0) {
      if (std::chrono::steady_clock::now() - begin < busy)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(nap);
      cancellation.requested();
    }
  }

 private:
  std::atomic<std::int64_t> left_;
};

void run_share(std::int64_t begin, std::int64_t end, detail::RangeFunction function, void* context,
               Cancellation& cancellation) {
  try {
    function(context, begin, end, cancellation);
  } catch (...) {
    cancellation.fail();
  }
}

#ifdef _OPENMP

bool in_region() { return omp_in_parallel(); }
int default_threads() { return omp_get_max_threads(); }

NTK_ALIBI_NOT_WATCHED
void run_shares(std::int64_t shares, std::int64_t count, detail::RangeFunction function,
                void* context, Cancellation& cancellation) {
  ThreadEdge begun, done;
  Countdown countdown(shares);
  begun.release();
#pragma omp parallel num_threads(team_size())
  {
#pragma omp for schedule(static, 1) nowait
    for (std::int64_t share = 0; share < shares; ++share) {
      begun.acquire();
      run_share(share * count / shares, (share + 1) * count / shares, function, context,
                cancellation);
      done.release();
      countdown.finish_one();
    }
    if (omp_get_thread_num() == 0) countdown.wait(cancellation);
  }
  done.acquire();
}
#else

thread_local bool inside_region = false;

bool in_region() { return inside_region; }

// A parallel region without a pragma: each thread in it takes shares until none is left.
struct Region {
  const std::int64_t shares, count;
  const detail::RangeFunction function;
  void* const context;
  Cancellation& cancellation;
  Countdown countdown{shares};
  std::atomic<std::int64_t> next{0};

  void take_part() {
    inside_region = true;
    for (std::int64_t share = next++; share < shares; share = next++) {
      run_share(share * count / shares, (share + 1) * count / shares, function, context,
                cancellation);
      countdown.finish_one();
    }
    inside_region = false;
  }
};

using SharedRegion = std::shared_ptr<Region>;

// Threads that sleep between regions: they take no time from another library's. They live as long
// as the process.
class Pool {
 public:
  void invite(const SharedRegion& region) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::int64_t wanted = region->shares - 1;
    try {
      for (; size_ < wanted; ++size_) std::thread([this] { work(); }).detach();
    } catch (const std::exception&) {  // with fewer threads a region takes longer
    }
    invitations_.insert(invitations_.end(), std::min(wanted, size_), region);
    wake_.notify_all();
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return !invitations_.empty(); });
      const SharedRegion region = std::move(invitations_.front());
      invitations_.pop_front();
      lock.unlock();
      region->take_part();  // which may have ended meanwhile
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<SharedRegion> invitations_;
  std::int64_t size_ = 0;
};

// OpenMP's variable for the number of threads, else one for each processor.
int default_threads() {
  static const int asked = [] {
    const char* text = std::getenv("OMP_NUM_THREADS");
    return text == nullptr ? 0 : std::min(std::atoi(text), 4096);
  }();
  return asked > 0 ? asked : std::max<int>(1, std::thread::hardware_concurrency());
}

void run_shares(std::int64_t shares, std::int64_t count, detail::RangeFunction function,
                void* context, Cancellation& cancellation) {
  static Pool& pool = *new Pool;  // never deleted: its threads use it while the process ends
  const SharedRegion region(new Region{shares, count, function, context, cancellation});
  pool.invite(region);
  region->take_part();
  region->countdown.wait(cancellation);
}
#endif

}  // namespace

int num_threads() {
  if (in_forked_child) return 1;
  const int chosen = chosen_threads;
  return chosen > 0 ? chosen : default_threads();
}

void set_num_threads(int threads) { chosen_threads = threads; }

void after_fork_in_child() { in_forked_child = true; }

bool forked() { return in_forked_child; }

void detail::parallel_for(std::int64_t count, std::int64_t grain, RangeFunction function,
                          void* context) {
  if (count <= 0) return;
  Cancellation cancellation;
  const std::int64_t shares =
      std::min<std::int64_t>(num_threads(), std::max<std::int64_t>(1, count / grain));
  if (shares > 1 && !in_region()) {
    run_shares(shares, count, function, context, cancellation);
    return cancellation.rethrow();
  }
  function(context, 0, count, cancellation);
  cancellation.rethrow();
}

}  // namespace ntk_alibi
