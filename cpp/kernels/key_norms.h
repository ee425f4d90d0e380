// Norms of keys. kernels.h documents the function.
#pragma once

#include "kernels/kernels.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

bool rows_are_finite(const HeadRows& rows, std::int64_t first, std::int64_t count, int head_dim);
float greatest_norm(const KeyList& keys, std::int64_t b, const HeadRows& key, int head_dim);

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
