// The memory of one thread while it works on tiles of queries.
#pragma once

#include "kernels/attention.h"
#include "kernels/constants.h"
#include "kernels/key_list.h"
#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// The state of one tile, in rows of queries_per_tile floats.
struct Scratch {
  float* query;          // [head_dim]
  float* output;         // [head_dim]
  float* scores[2];      // [keys_per_block]: of the current block and of the one before it
  float* maximum;        // [1], log2 domain
  float* sum;            // [1], relative to the maximum
  float* log_sum;        // [1], a lower bound of log2 of the whole sum so far
  float* block_maximum;  // [1], of the current block
  float* centre_score;   // [1], log2 domain, without bias
  float* rescale;        // [1]: the factor for earlier sums after the maximum rose
  float* slopes;         // [2]: left and right slopes times log2 e
  float* scales;         // [1], times log2 e
  std::int32_t* ints;  // [5]: query positions, least and greatest distances, ends of sinks, origins
  std::int32_t* bits;  // [2]: the lower and the upper halves of the mask's words for a mixed block
};

// Blocks of one head's keys and values in the form that the products read them, kept for all tiles
// of the head. Block b is in slot b % slots.
struct alignas(64) StoredBlocks {
  static constexpr int most_slots = 512;
  // Rows of the head whose blocks are stored
  const void* key;
  const void* value;
  const float* key_scales;
  const float* value_scales;
  const std::int32_t* indices;
  std::int64_t count;
  std::int32_t key_blocks[most_slots];  // b + 1 for each slot, or 0
  std::int32_t value_blocks[most_slots];
  std::int32_t transposed_key_blocks[most_slots];
};

struct RowScratch {
  StoredBlocks* stored;
  int slots;
  // [slots][keys_per_block][head_dim]; gradients by matrix registers read keys of 16 bits in rows
  // and transposed, each in one half of a slot.
  float* keys;
  float* values;
  float* floats;  // [keys_per_block][head_dim]: rows that are needed for a moment
};

// The blocks of a head are stored if several groups of tiles read them and they cannot be read in
// place. A head of more blocks than this many bytes hold stores the last ones that it read.
inline int slots_for(const AttentionTile& tile) {
  constexpr std::int64_t most_bytes = 16 << 20;
  if (read_in_place(tile) || tile.head_dim == 0 || tile.tiles_of_keys <= tiles_per_group) return 1;
  const std::int64_t block_bytes = 2 * sizeof(float) * keys_per_block * tile.head_dim;
  const std::int64_t most = most_bytes / block_bytes;
  const std::int64_t blocks = block_count(tile.keys);
  const std::int64_t slots = blocks < most ? blocks : most;
  if (slots > StoredBlocks::most_slots) return StoredBlocks::most_slots;
  return slots > 1 ? static_cast<int>(slots) : 1;
}

inline std::int64_t tile_row() { return queries_per_tile; }

// Divides a thread's memory into pieces, or only counts their bytes if there is no memory yet.
class Pieces {
 public:
  explicit Pieces(void* memory = nullptr) : memory_(static_cast<float*>(memory)) {}

  Scratch tile(int head_dim) {
    Scratch s;
    s.query = take(head_dim * tile_row());
    s.output = take(head_dim * tile_row());
    for (float*& scores : s.scores) scores = take(keys_per_block * tile_row());
    s.maximum = take(tile_row());
    s.sum = take(tile_row());
    s.log_sum = take(tile_row());
    s.block_maximum = take(tile_row());
    s.centre_score = take(tile_row());
    s.rescale = take(tile_row());
    s.slopes = take(2 * tile_row());
    s.scales = take(tile_row());
    s.ints = reinterpret_cast<std::int32_t*>(take(5 * tile_row()));
    s.bits = reinterpret_cast<std::int32_t*>(take(2 * tile_row()));
    return s;
  }

  // The first piece of the scratch memory.
  RowScratch rows(int head_dim, int slots) {
    const std::int64_t block = static_cast<std::int64_t>(keys_per_block) * head_dim;
    RowScratch s;
    s.stored = reinterpret_cast<StoredBlocks*>(take(sizeof(StoredBlocks) / sizeof(float)));
    s.slots = slots;
    s.keys = take(slots * block);
    s.values = take(slots * block);
    s.floats = take(block);
    return s;
  }

  std::int64_t bytes() const { return taken_ * static_cast<std::int64_t>(sizeof(float)); }

  float* take(std::int64_t count) {
    float* piece = memory_ == nullptr ? nullptr : memory_ + taken_;
    taken_ += count;
    return piece;
  }

 private:
  float* memory_;
  std::int64_t taken_ = 0;
};

template <class Float>
inline Float* lane_row(Float* rows, std::int64_t row) {
  return rows + row * tile_row();
}

inline f32v vector_of(const float* rows, std::int64_t row, int v) {
  return load<f32v>(rows + row * tile_row() + v * lanes);
}

inline void store_vector(float* rows, std::int64_t row, int v, f32v value) {
  store(rows + row * tile_row() + v * lanes, value);
}

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
