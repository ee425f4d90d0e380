// Attention of one tile of queries over a list of keys. kernels.h documents the functions.
#pragma once

#include "kernels/kernels.h"
#include "kernels/simd.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

// The vectors of queries in a tile, and the keys (or channels) that a step of the products works
// on. Their product is the number of sums that the registers hold beside the operands: there are 32
// registers on AVX-512 and NEON, else 16. On NEON 20 sums are the most that never go to the stack,
// and more than the 16 that four units with a latency of four need to be busy.
#if NTK_ALIBI_VECTOR_BYTES == 64
constexpr int vectors_per_tile = 2, rows_per_step = 8;
#elif defined(__aarch64__)
constexpr int vectors_per_tile = 5, rows_per_step = 4;
#else
constexpr int vectors_per_tile = 3, rows_per_step = 4;
#endif
constexpr int queries_per_tile = vectors_per_tile * lanes;

std::int64_t attention_scratch_bytes(const AttentionTile& tile);
void attention_tiles(const AttentionTile* tiles, int count, void* scratch, BlocksRead* read);

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
