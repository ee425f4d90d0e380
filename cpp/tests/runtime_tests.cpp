// Threads, their exceptions and interruption, and the choice of the instruction set.
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "checks.h"
#include "core/isa.h"
#include "core/parallel.h"

using namespace ntk_alibi;

void test_parallel_for_covers_everything_once() {
  for (int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    for (std::int64_t count : {0, 1, 2, 7, 1000}) {
      for (std::int64_t grain : {1, 3, 5000}) {
        std::vector<int> visits(count);
        parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end, Cancellation&) {
          for (std::int64_t i = begin; i < end; ++i) ++visits[i];
        });
        bool once = true;
        for (int visited : visits) once = once && visited == 1;
        CHECK(once);
      }
    }
  }
  set_num_threads(0);
}

// Of exceptions in several threads one arrives, and later regions work.
void test_exceptions_leave_parallel_regions() {
  for (int threads : {1, 2, 8}) {
    set_num_threads(threads);
    for (std::int64_t failing : {0, 1, 99}) {
      std::atomic<int> begun{0};
      bool caught = false;
      try {
        for_each_task({100, 1, TaskOrder::neighbours_together}, {64, 64},
                      [&](std::int64_t task, void*, StopCheck) {
                        ++begun;
                        if (task >= failing) throw std::bad_alloc();
                      });
      } catch (const std::bad_alloc&) {
        caught = true;
      }
      CHECK(caught);
      CHECK(begun <= failing + threads);
    }
  }
  set_num_threads(0);
}

// The check runs on the calling thread, also while that one waits for the others.
void test_interrupts_stop_parallel_regions() {
  static std::thread::id caller;
  static std::atomic<int> checks;
  caller = std::this_thread::get_id(), checks = 0;
  set_interrupt_check([] {
    CHECK(std::this_thread::get_id() == caller);
    if (++checks == 2) throw std::runtime_error("interrupted");
  });
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    checks = 0;
    bool caught = false;
    try {
      parallel_for(threads, 1, [&](std::int64_t begin, std::int64_t, Cancellation& cancellation) {
        // All ranges but the caller's, or the caller's if it is alone, would take for ever.
        while ((begin > 0 || threads == 1) && !cancellation.requested())
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
    } catch (const std::runtime_error&) {
      caught = true;
    }
    CHECK(caught && checks == 2);
  }
  set_interrupt_check(nullptr);
  set_num_threads(0);
}

// Tasks flush small results to 0; what runs after them, or in between, does not.
void test_the_callers_mode_stays() {
  const auto flushes = [] {
    volatile float least = std::numeric_limits<float>::min();
    return least * 0.5f == 0.0f;
  };
  static bool flushes_in_check;
  set_interrupt_check([] {
    volatile float least = std::numeric_limits<float>::min();
    flushes_in_check = least * 0.5f == 0.0f;
    throw std::runtime_error("interrupted");
  });
  const int rounding = std::fegetround();
  std::fesetround(FE_UPWARD);
  for (int threads : {1, 2}) {
    set_num_threads(threads);
    std::atomic<bool> in_all_tasks{true};
    for_each_task({50, 1, TaskOrder::as_listed}, {64, 64}, [&](std::int64_t, void*, StopCheck) {
      if (!flushes()) in_all_tasks = false;
    });
#if defined(__x86_64__) || defined(__aarch64__)
    CHECK(in_all_tasks);
#endif
    CHECK(!flushes());
    flushes_in_check = true;
    bool caught = false;
    try {
      for_each_task({threads, 1, TaskOrder::as_listed}, {64, 64},
                    [&](std::int64_t, void*, StopCheck stop) {
                      while (!stop.requested(stop.context))
                        std::this_thread::sleep_for(std::chrono::milliseconds(1));
                    });
    } catch (const std::runtime_error&) {
      caught = true;
    }
    CHECK(caught && !flushes_in_check && !flushes());
    CHECK(std::fegetround() == FE_UPWARD);
  }
  std::fesetround(rounding);
  set_interrupt_check(nullptr);
  set_num_threads(0);
}

void set_environment(const char* name, const std::string& value) {
#ifdef _WIN32
  _putenv_s(name, value.c_str());
#else
  setenv(name, value.c_str(), 1);
#endif
}

// The first choice, so that this test comes before all others that ask for kernels.
void test_the_environment_chooses_the_isa() {
  const char* before = std::getenv("NTK_ALIBI_ISA");
  const std::string kept = before == nullptr ? "" : before;
  set_environment("NTK_ALIBI_ISA", "mmx");
  bool refused = false;
  try {
    active_kernels();
  } catch (const std::invalid_argument& error) {
    refused = std::strstr(error.what(), "NTK_ALIBI_ISA must be one of ") != nullptr &&
              std::strstr(error.what(), "got 'mmx'") != nullptr;
  }
  CHECK(refused);
  const std::string plainest = available_isas().front();
  set_environment("NTK_ALIBI_ISA", plainest);
  CHECK(active_isa() == plainest);
  set_environment("NTK_ALIBI_ISA", "mmx");  // which is read no more
  CHECK(active_isa() == plainest);
  set_environment("NTK_ALIBI_ISA", kept);
}

void test_unknown_isas_are_refused() {
  for (const char* name : {"", "mmx", "AVX2"}) {
    bool refused = false;
    try {
      select_isa(name);
    } catch (const std::invalid_argument& error) {
      refused = std::strstr(error.what(), "portable") != nullptr;
    }
    CHECK(refused);
  }
}
