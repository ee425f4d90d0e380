// Gradients of one tile of queries. kernels.h documents the functions.
#pragma once

#include "kernels/kernels.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

std::int64_t gradient_scratch_bytes(const AttentionTile& tile);
void gradient_tile(const GradientTile& gradient, void* scratch);

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
