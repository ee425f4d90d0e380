// The table of contents of ntk_alibi._core. The Python package checks all arguments before it
// calls; an exception from here is a bug there. Wrong types, axes and sizes get one all the same,
// so that no program that imports this module is ended by them.
#include "bindings/pybind.h"

// Python without a GIL turns it on when it imports this module, which does not declare otherwise.
PYBIND11_MODULE(_core_of_main_interpreter, module) {
  module.doc() = "Compiled core of ntk_alibi; see _core.pyi for the signatures.";
  module.attr("__version__") = NTK_ALIBI_VERSION;
  ntk_alibi::register_runtime(module);
  ntk_alibi::register_bias(module);
  ntk_alibi::register_problem(module);
  ntk_alibi::register_dropout(module);
  ntk_alibi::register_attention(module);
  ntk_alibi::register_merge(module);
}

// Python calls this at import. The main thread, threads and the ISA belong to the process, and
// pybind11 waits for ever in some versions' subinterpreters.
PyMODINIT_FUNC PyInit__core() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main())
    return PyInit__core_of_main_interpreter();
  PyErr_SetString(PyExc_ImportError,
                  "ntk_alibi must be imported in the main interpreter, got a subinterpreter");
  return nullptr;
}
