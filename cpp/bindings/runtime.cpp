// Instruction sets and threads.
#include "bindings/pybind.h"
#include "core/isa.h"
#include "core/parallel.h"

namespace ntk_alibi {

void register_runtime(py::module_& module) {
  module.def("available_isas", &available_isas);
  module.def("active_isa", &active_isa);
  module.def("select_isa", &select_isa, py::arg("name"));
  module.def("num_threads", &num_threads);
  module.def("set_num_threads", &set_num_threads, py::arg("threads"));
  module.def("after_fork_in_child", &after_fork_in_child);
  module.def("forked", &forked);
}

}  // namespace ntk_alibi
