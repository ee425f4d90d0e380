// Instruction sets and threads.
#include <atomic>
#include <string>

#include "bindings/pybind.h"
#include "core/cancellation.h"
#include "core/isa.h"
#include "core/parallel.h"

namespace ntk_alibi {
namespace {

// The thread on which Python handles signals.
std::atomic<unsigned long> main_thread{0};

// Lets Python handle signals. An exception of a handler, such as KeyboardInterrupt, ends the call.
void handle_signals() {
  if (PyThread_get_thread_ident() != main_thread) return;
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// After fork() the thread that forked is the main thread.
void bind_after_fork_in_child() {
  main_thread = PyThread_get_thread_ident();
  after_fork_in_child();
}

void bind_set_num_threads(int threads) {
  constexpr int most = 4096;
  if (threads < 0 || threads > most)
    throw py::value_error("threads must be between 0 and " + std::to_string(most) + ", got " +
                          std::to_string(threads));
  set_num_threads(threads);
}

}  // namespace

void register_runtime(py::module_& module) {
  const py::object thread = py::module_::import("threading").attr("main_thread")();
  main_thread = thread.attr("ident").cast<unsigned long>();
  set_interrupt_check(&handle_signals);
  module.def("available_isas", &available_isas);
  module.def("active_isa", &active_isa);
  module.def("select_isa", &select_isa, py::arg("name"));
  module.def("cpu_vendor", &cpu_vendor);
  module.def("num_threads", &num_threads);
  module.def("set_num_threads", &bind_set_num_threads, py::arg("threads"));
  module.def("after_fork_in_child", &bind_after_fork_in_child);
  module.def("forked", &forked);
}

}  // namespace ntk_alibi
