#include "core/table_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/constants.h"
#include "core/parallel.h"

namespace ntk_alibi {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

BiasBound empty_bound() { return {-infinity, -infinity}; }

BiasBound with_value(const BiasBound& bound, double value) {
  if (value == -infinity) return bound;
  const bool proven = value < infinity;  // false for NaN, too
  if (!proven) return {infinity, infinity};
  const double greater = std::max(bound.sum, value), less = std::min(bound.sum, value);
  return {std::max(bound.each, value), greater + std::log2(1.0 + std::exp2(less - greater))};
}

void TableBounds::make() const {
  std::call_once(made_, [this] {
    behind_.resize(heads_ * size_);
    ahead_.resize(heads_ * size_);
    parallel_for_each(heads_, 1, [this](std::int64_t head) { make_for_head(head); });
  });
}

void TableBounds::make_for_head(std::int64_t head) const {
  const float* table = table_ + head * head_stride_;
  BiasBound* behind = behind_.data() + head * size_;
  BiasBound* ahead = ahead_.data() + head * size_;
  BiasBound bound = empty_bound();
  for (std::int64_t t = size_ - 1; t >= 0; --t)
    behind[t] = bound = with_value(bound, table[t] * log2_e);
  bound = empty_bound();
  for (std::int64_t t = 0; t < size_; ++t) ahead[t] = bound = with_value(bound, table[t] * log2_e);
}

}  // namespace ntk_alibi
