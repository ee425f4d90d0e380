// Norms of keys. kernels.h documents the function.
#pragma once

#include "kernels/kernels.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

bool rows_are_finite(const void* rows, std::int64_t stride, std::int64_t count, int head_dim,
                     DType dtype);
float greatest_norm(const KeyList& keys, std::int64_t b, const void* key, std::int64_t key_stride,
                    int head_dim, DType dtype);

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
