// A bias of attention with the arrays that it reads, which live as long.
#pragma once

#include <vector>

#include "bindings/arrays.h"
#include "core/attention.h"

namespace ntk_alibi {

// What the axes of an array belong to.
enum class Axis { batch, heads, queries, keys, own };

struct BiasArray {
  const char* name;
  py::array array;
  std::vector<Axis> axes;
  Axes sizes;
};

struct HeldBias {
  AttentionBias bias{};
  std::vector<BiasArray> arrays;

  // Throws a ValueError unless the arrays suit a problem.
  void check(const AttentionProblem& problem) const;
};

}  // namespace ntk_alibi
