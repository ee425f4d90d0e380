// Norms of keys. kernels.h documents the functions.
#pragma once

#include "kernels/kernels.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

bool rows_are_finite(const HeadRows& rows, std::int64_t first, std::int64_t count, int head_dim);
void centre_of_keys(const KeyList& keys, const HeadRows& key, int head_dim, float* centre);
float greatest_norm(const KeyList& keys, std::int64_t b, const HeadRows& key, int head_dim,
                    const float* centre);

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
