// Attention of few queries over one block of keys. kernels.h documents the functions.
#pragma once

#include "kernels/kernels.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

std::int64_t one_block_scratch_bytes(int head_dim);
void one_block_tile(const AttentionTile& tile, void* scratch);

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
