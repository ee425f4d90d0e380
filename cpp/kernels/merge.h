// Joins results of attention over disjoint keys. kernels.h documents the function.
#pragma once

#include "kernels/kernels.h"

namespace ntk_alibi {
namespace NTK_ALIBI_ISA {

void merge_row(const MergeRow& row);

}  // namespace NTK_ALIBI_ISA
}  // namespace ntk_alibi
