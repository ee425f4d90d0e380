// Attention of a single query, split over the keys. kernels.h documents the functions.
#pragma once

#include "kernels/kernels.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

std::int64_t decode_scratch_bytes(int head_dim);
void decode_part(const AttentionTile& tile, const DecodeTask& task, void* scratch,
                 DecodePart* part);
void merge_parts(const AttentionTile& tile, const DecodePart* parts, std::int64_t count,
                 void* scratch);

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
