// Attention of one tile of queries over a list of keys. What each function does stands in
// kernels.h.
#pragma once

#include "kernels/kernels.h"
#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// Vectors of queries in a tile, and keys (or channels) a step of the products works on: as many
// accumulators as registers hold beside their operands (32 of them on AVX-512 and NEON, else 16).
#if defined(__AVX512F__)
constexpr int vectors_per_tile = 2, rows_per_step = 8;
#elif defined(__aarch64__)
constexpr int vectors_per_tile = 4, rows_per_step = 4;
#else
constexpr int vectors_per_tile = 3, rows_per_step = 4;
#endif
constexpr int queries_per_tile = vectors_per_tile * lanes;

std::int64_t attention_scratch_bytes(int head_dim);
void attention_tiles(const AttentionTile* tiles, int count, void* scratch, std::int64_t* visited);
std::int64_t visible_blocks(const AttentionTile& tile);
float greatest_norm(const KeyList& keys, std::int64_t b, const void* key, std::int64_t key_stride,
                    int head_dim, DType dtype);

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
