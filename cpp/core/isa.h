// The choice of the kernels' instruction set: made when it is first asked for, by the environment
// variable NTK_ALIBI_ISA or, without it, by the machine; and changed by tests.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace ntk_alibi {

// The names of the compiled ISAs that this machine runs, plainest first.
std::vector<std::string> available_isas();

// Throws std::invalid_argument if NTK_ALIBI_ISA has no name of these.
const char* active_isa();

// Selects an ISA by name. Throws std::invalid_argument, which lists the choices, if the name is
// unknown or this machine cannot run the ISA.
void select_isa(const std::string& name);

const KernelTable& active_kernels();

// Who made the processor: "intel", "amd", or "other", which is also any that is not x86.
const char* cpu_vendor();

}  // namespace ntk_alibi
