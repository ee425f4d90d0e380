#include "core/slopes.h"

namespace ntk_alibi {

namespace {

// The exponent of the last head.
constexpr double last_exponent = 8.0;

}  // namespace

void alibi_exponents(std::int64_t num_heads, SlopeRule rule, double* exponents) {
  std::int64_t regular = num_heads;
  if (rule == SlopeRule::press) {
    regular = 1;
    while (2 * regular <= num_heads) regular *= 2;
  }
  for (std::int64_t h = 1; h <= regular; ++h) exponents[h - 1] = last_exponent * h / regular;
  for (std::int64_t i = 1; i <= num_heads - regular; ++i) {
    exponents[regular + i - 1] = last_exponent * (2 * i - 1) / (2 * regular);
  }
}

}  // namespace ntk_alibi
