// The mask rule: the keys that a query sees. No other file of the core interprets its options.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/constants.h"

namespace ntk_alibi {

// A query at position q sees the key at position k, at distance d = q - k, if
//   d >= least_distance and (d <= greatest_distance or k < sink_end).
struct VisibleInterval {
  std::int32_t least_distance;
  std::int32_t greatest_distance;
  std::int32_t sink_end;

  bool shows(std::int64_t distance, std::int64_t query_position) const {
    return distance >= least_distance &&
           (distance <= greatest_distance || query_position - distance < sink_end);
  }

  // Hides the keys with d > 0, sinks included.
  void hide_keys_behind() {
    greatest_distance = std::min(greatest_distance, 0);
    sink_end = 0;
  }
  // Hides the keys with d < 0, sinks included.
  void hide_keys_ahead() { least_distance = std::max(least_distance, 0); }
};

// Options of a mask besides padding. With d the distance as above, a key
//   ahead of the query (d < 0)     is hidden if causal; else it is visible if -d < window;
//   not ahead of it (d >= 0)       is visible if d < window and, with causal_block > 0, if it is in
//                                  the query's own block of causal_block positions or the one
//                                  before.
// A key at a position below sink is exempt from the limits on keys not ahead. The limits on keys
// ahead hold for it, too: a sink is visible if d >= 0, or if it is ahead, not causal, and nearer
// than the window.
struct MaskRule {
  // The window of a mask without one. The greatest window hides the greatest distance.
  static constexpr std::int64_t no_window = std::int64_t{int32_max} + 1;

  bool causal;
  std::int64_t window;
  std::int64_t causal_block;  // 0: none
  std::int64_t sink;

  bool sees_ahead() const { return !causal && window > 1; }

  // Inline, since the core calls this once for each query.
  VisibleInterval interval(std::int32_t query_position) const {
    const bool windowed = window < no_window;
    std::int64_t greatest = windowed ? window - 1 : int32_max;
    if (causal_block > 0)
      greatest = std::min(greatest, query_position - begin_of_previous_block(query_position));
    const std::int32_t least = causal     ? 0
                               : windowed ? static_cast<std::int32_t>(1 - window)
                                          : int32_min;
    return {least, static_cast<std::int32_t>(greatest), static_cast<std::int32_t>(sink)};
  }

 private:
  // Rounds towards minus infinity: query positions may be negative.
  std::int64_t begin_of_previous_block(std::int64_t position) const {
    const std::int64_t block =
        position >= 0 ? position / causal_block : -((-position - 1) / causal_block) - 1;
    return (block - 1) * causal_block;
  }
};

}  // namespace ntk_alibi
