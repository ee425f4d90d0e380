// What calls of attention share, made once: a bias, a mask of pairs, and the problem that has them.
// They keep the arrays that they read.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "bindings/arrays.h"
#include "core/attention.h"
#include "core/block_mask.h"
#include "core/segments.h"

namespace ntk_alibi {

// An array of a bias. Its axes are b (batch), h (heads), q (queries), k (keys) or . (any size), in
// capitals where a size of 1 counts for all.
struct BiasArray {
  const char* name;
  py::array array;
  const char* axes;
};

struct Bias {
  AttentionBias view{};
  std::vector<BiasArray> arrays;
};

struct Problem {
  AttentionProblem view{};  // without the inputs and outputs of a call
  std::optional<std::vector<Segment>> segments;
  std::shared_ptr<const Bias> bias;
  std::shared_ptr<const BlockMask> pairs;
  std::vector<py::object> kept;
};

}  // namespace ntk_alibi
