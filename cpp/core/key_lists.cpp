#include "core/key_lists.h"

#include <algorithm>
#include <functional>

namespace ntk_alibi {
namespace {

// No key has such a position.
constexpr std::int64_t none = -1;

}  // namespace

OwnedKeyList::OwnedKeyList(const AttentionProblem& problem, std::int64_t b) {
  const std::uint8_t* mask = problem.key_mask ? problem.key_mask + b * problem.key_pitch : nullptr;
  const PositionView& view = problem.key_positions;
  consecutive_ = !mask && !view.data;
  count_ = problem.key_length;
  if (consecutive_) {
    greatest_ = count_ - 1;
    return;
  }
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
  sort_positions();
}

void OwnedKeyList::sort_positions() {
  if (positions_.empty()) return;
  if (!rise_) {
    sorted_ = positions_;
    std::sort(sorted_.begin(), sorted_.end());
  }
  const std::vector<std::int32_t>& sorted = this->sorted();
  least_ = sorted.front(), greatest_ = sorted.back();
  for (std::size_t k = 1; k < sorted.size(); ++k)
    gap_ = std::max<std::int64_t>(gap_, static_cast<std::int64_t>(sorted[k]) - sorted[k - 1]);
}

// The greatest position up to a bound, or `none`.
std::int64_t OwnedKeyList::greatest_up_to(std::int64_t bound) const {
  if (consecutive_) return std::min(bound, greatest_) >= 0 ? std::min(bound, greatest_) : none;
  const std::vector<std::int32_t>& sorted = this->sorted();
  const auto after = std::upper_bound(sorted.begin(), sorted.end(), bound);
  return after == sorted.begin() ? none : *(after - 1);
}

// The least position from a bound on, or `none`.
std::int64_t OwnedKeyList::least_from(std::int64_t bound) const {
  if (consecutive_) {
    const std::int64_t at = std::max<std::int64_t>(bound, 0);
    return at <= greatest_ ? at : none;
  }
  const std::vector<std::int32_t>& sorted = this->sorted();
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), bound);
  return at == sorted.end() ? none : *at;
}

std::int64_t OwnedKeyList::one_sided_distance(std::int32_t query, const VisibleInterval& visible,
                                              std::int64_t negligible) const {
  const std::int64_t near = std::min<std::int64_t>(negligible, visible.greatest_distance);
  if (gap_ <= near && query >= least_ && query <= greatest_ + near) return 0;
  std::int64_t behind = greatest_up_to(query);
  if (behind != none && query - behind > visible.greatest_distance)
    behind = greatest_up_to(std::min<std::int64_t>(query, visible.sink_end - 1));
  std::int64_t ahead = visible.least_distance < 0 ? least_from(std::int64_t{query} + 1) : none;
  if (ahead != none && query - ahead < visible.least_distance) ahead = none;
  if ((behind == none) == (ahead == none)) return 0;
  return query - (behind == none ? ahead : behind);
}

std::int64_t OwnedKeyList::one_sided_distance(std::int32_t query, const VisibleInterval& visible,
                                              std::int64_t negligible,
                                              const std::uint64_t* words) const {
  const KeyList keys = view();
  const auto position = [&](std::int64_t c) -> std::int64_t {
    return keys.positions ? keys.positions[c] : c;
  };
  const auto shown = [&](std::int64_t c) {
    return has_bit(words, c) && visible.shows(query - position(c), query);
  };
  // Where positions rise, the nearest keys are beside the query.
  std::int64_t middle = keys.count;  // the keys before it are not ahead of the query
  if (keys.positions == nullptr)
    middle = std::clamp<std::int64_t>(std::int64_t{query} + 1, 0, keys.count);
  else if (rise_)
    middle = std::upper_bound(positions_.begin(), positions_.end(), query) - positions_.begin();
  constexpr std::int64_t far = std::int64_t{1} << 62;
  std::int64_t behind = far, ahead = far;
  for (std::int64_t c = middle - 1; c >= 0; --c) {
    if (words[c / keys_per_block] == 0) {
      c -= c % keys_per_block;
      continue;
    }
    if (!shown(c)) continue;
    const std::int64_t distance = query - position(c);
    if (distance >= 0) behind = std::min(behind, distance);
    if (distance < 0) ahead = std::min(ahead, -distance);
    if (keys.positions == nullptr || rise_) break;
  }
  if (behind <= negligible) return 0;
  for (std::int64_t c = middle; c < keys.count && visible.least_distance < 0; ++c) {
    if (words[c / keys_per_block] == 0) {
      c |= keys_per_block - 1;
      continue;
    }
    if (!shown(c)) continue;
    ahead = position(c) - query;
    break;
  }
  if ((behind == far) == (ahead == far)) return 0;
  const std::int64_t nearest = std::min(behind, ahead);
  return nearest <= negligible ? 0 : behind < ahead ? nearest : -nearest;
}

bool OwnedKeyList::is_any_visible(std::int32_t query, const VisibleInterval& visible) const {
  const std::int64_t last = std::int64_t{query} - visible.least_distance;
  const std::int64_t first = least_from(std::int64_t{query} - visible.greatest_distance);
  const std::int64_t sink = least_from(0);
  return (first != none && first <= last) ||
         (sink != none && sink < visible.sink_end && sink <= last);
}

KeyList OwnedKeyList::view() const {
  if (consecutive_) return {count_, nullptr, nullptr, nullptr, true};
  return {static_cast<std::int64_t>(indices_.size()), indices_.data(), positions_.data(),
          blocks_.data(), rise_};
}

KeyLists::KeyLists(const AttentionProblem& problem) {
  const bool shared = !problem.key_mask && problem.key_positions.batch_stride == 0;
  // A batch without rows may have no positions to read.
  const std::int64_t lists = shared ? std::min<std::int64_t>(problem.batch, 1) : problem.batch;
  for (std::int64_t b = 0; b < lists; ++b) lists_.emplace_back(problem, b);
}

}  // namespace ntk_alibi
