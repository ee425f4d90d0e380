#include "core/key_lists.h"

#include <algorithm>
#include <functional>

namespace ntk_alibi {

OwnedKeyList::OwnedKeyList(const AttentionProblem& problem, std::int64_t b) {
  const std::uint8_t* mask = problem.key_mask ? problem.key_mask + b * problem.key_length : nullptr;
  const PositionView& view = problem.key_positions;
  consecutive_ = !mask && !view.data;
  count_ = problem.key_length;
  if (consecutive_) return;
  const std::int32_t* positions = view.data ? view.data + b * view.batch_stride : nullptr;
  for (std::int64_t k = 0; k < problem.key_length; ++k) {
    if (mask && !mask[k]) continue;
    indices_.push_back(static_cast<std::int32_t>(k));
    positions_.push_back(positions ? positions[k] : static_cast<std::int32_t>(k));
  }
  for (std::size_t begin = 0; begin < positions_.size(); begin += keys_per_block) {
    const std::size_t end = std::min<std::size_t>(begin + keys_per_block, positions_.size());
    const auto [least, greatest] =
        std::minmax_element(positions_.begin() + begin, positions_.begin() + end);
    blocks_.push_back({*least, *greatest});
  }
  rise_ = std::adjacent_find(positions_.begin(), positions_.end(), std::greater_equal<>()) ==
          positions_.end();
}

KeyList OwnedKeyList::view() const {
  if (consecutive_) return {count_, nullptr, nullptr, nullptr, true};
  return {static_cast<std::int64_t>(indices_.size()), indices_.data(), positions_.data(),
          blocks_.data(), rise_};
}

KeyLists::KeyLists(const AttentionProblem& problem) {
  const bool shared = !problem.key_mask && problem.key_positions.batch_stride == 0;
  for (std::int64_t b = 0; b < (shared ? 1 : problem.batch); ++b) lists_.emplace_back(problem, b);
}

}  // namespace ntk_alibi
