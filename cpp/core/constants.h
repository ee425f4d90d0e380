// Constants of the core that more than one file needs.
#pragma once

#include <cstdint>
#include <limits>

namespace ntk_alibi {

// The kernels' logarithms, and bounds for them, are to the base 2.
constexpr double log2_e = 1.44269504088896340736;

// Distances without a limit.
constexpr std::int32_t int32_min = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t int32_max = std::numeric_limits<std::int32_t>::max();

// Scratch memory and bounds of rounding errors are made for so many channels of a head.
constexpr std::int64_t greatest_head_dim = 256;

}  // namespace ntk_alibi
