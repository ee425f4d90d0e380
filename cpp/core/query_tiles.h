// How the queries of a head are cut into tiles.
#pragma once

#include <cstdint>

namespace ntk_alibi {

// Only the first tile may have fewer queries than the others: a tile costs the same with empty
// lanes, and with a causal mask the first one sees the fewest keys.
class QueryTiles {
 public:
  QueryTiles(std::int64_t queries, std::int64_t size)
      : size_(size), count_((queries + size - 1) / size), empty_(count_ * size - queries) {}

  std::int64_t count() const { return count_; }
  std::int64_t size() const { return size_; }

  // The first query of a tile, or of the one behind it.
  std::int64_t begin(std::int64_t tile) const { return tile == 0 ? 0 : tile * size_ - empty_; }
  std::int64_t queries(std::int64_t tile) const { return begin(tile + 1) - begin(tile); }

  // The tile that begins at a query, or -1.
  std::int64_t beginning_at(std::int64_t query) const {
    const std::int64_t tile = (query + empty_) / size_;
    return tile < count_ && begin(tile) == query ? tile : -1;
  }

 private:
  const std::int64_t size_, count_, empty_;
};

}  // namespace ntk_alibi
