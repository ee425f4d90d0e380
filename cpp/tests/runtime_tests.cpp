// Threads and the choice of the instruction set.
#include <cstring>
#include <stdexcept>
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
