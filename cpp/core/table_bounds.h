// Bounds of a bias that is a table over distance.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "kernels/kernels.h"

namespace ntk_alibi {

// The bound of a set of values with one more value, log2 domain.
BiasBound with_value(const BiasBound& bound, double value);

// The bound of an empty set of values.
BiasBound empty_bound();

// Bounds for each distance of a table, made when they are first asked for: layers and steps of a
// generation share a table, and short calls need no bounds. Threads may share it.
class TableBounds {
 public:
  // table: (heads, distances), with head_stride from head to head; it must outlive the bounds.
  TableBounds(const float* table, std::int64_t heads, std::int64_t head_stride, std::int64_t size)
      : table_(table), heads_(heads), head_stride_(head_stride), size_(size) {}

  // Of a head, as `Skipping` has them.
  const BiasBound* behind(std::int64_t head) const { return behind_.data() + head * size_; }
  const BiasBound* ahead(std::int64_t head) const { return ahead_.data() + head * size_; }

  // Makes the bounds, once.
  void make() const;

 private:
  void make_for_head(std::int64_t head) const;

  const float* table_;
  std::int64_t heads_, head_stride_, size_;
  mutable std::once_flag made_;
  mutable std::vector<BiasBound> behind_, ahead_;  // (heads, distances)
};

}  // namespace ntk_alibi
