// Masks of pairs of a query and a key, which follow no rule: one bit for each pair.
#pragma once

#include <cstdint>
#include <vector>

#include "core/key_lists.h"
#include "core/query_tiles.h"

namespace ntk_alibi {

// Bytes (batch or 1, heads or 1, queries, keys), 0 for a hidden key. Strides are in bytes.
struct MaskView {
  const std::uint8_t* data;
  std::int64_t shape[4];
  std::int64_t strides[4];
};

// The bits of a mask, read once. Axes with a stride of 0 are stored once. It never changes, so that
// calls and threads may share it.
class BlockMask {
 public:
  explicit BlockMask(const MaskView& view);

  // Bit k % 64 of word k / 64 tells whether the query sees key k.
  const std::uint64_t* row(std::int64_t b, std::int64_t h, std::int64_t query) const;
  std::int64_t query_stride() const { return queries_ > 1 ? words_per_row_ : 0; }
  const std::int64_t* shape() const { return shape_; }
  std::int64_t batch() const { return batch_; }
  std::int64_t heads() const { return heads_; }

 private:
  std::int64_t shape_[4];  // of the view
  std::int64_t batch_, heads_, queries_, words_per_row_;
  std::vector<std::uint64_t> words_;
};

// The bits of a problem's pairs in the order of its key lists, and what tiles of queries see of
// each block of keys.
class PairBits {
 public:
  PairBits(const AttentionProblem& problem, const KeyLists& lists, const QueryTiles& tiles);

  bool exist() const { return mask_ != nullptr; }

  // The words of queries from `first` on.
  const std::uint64_t* words(std::int64_t b, std::int64_t h, std::int64_t first) const;
  std::int64_t stride() const { return stride_; }

  // What TileMask::shown has for the tile of `count` queries from `first` on; null for other runs
  // of queries.
  const std::uint8_t* shown(std::int64_t b, std::int64_t h, std::int64_t first,
                            std::int64_t count) const;

 private:
  bool in_place(std::int64_t b) const;
  std::int64_t head_of(std::int64_t b, std::int64_t h) const;
  void copy(std::int64_t b);
  void count_blocks(std::int64_t b);

  const PairMask part_;
  const BlockMask* const mask_;
  const KeyLists& lists_;
  const QueryTiles tiles_;
  const std::int64_t key_length_, queries_;
  std::int64_t stride_ = 0, rows_ = 0, heads_ = 0, blocks_ = 0;
  std::vector<std::uint64_t> copies_;  // (rows, heads, queries or 1, blocks), if any row needs one
  std::vector<std::uint8_t> shown_;    // (rows, heads, tiles, blocks)
};

}  // namespace ntk_alibi
