// Which instruction set the kernels use: chosen once when the module loads, changeable for tests.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace ntk_alibi {

// Names of the ISAs that were compiled in and that this machine runs, plainest first.
std::vector<std::string> available_isas();

const char* active_isa();

// Selects an ISA by name. Throws std::invalid_argument, naming the choices, for a name that is
// unknown or that this machine cannot run.
void select_isa(const std::string& name);

const KernelTable& active_kernels();

}  // namespace ntk_alibi
