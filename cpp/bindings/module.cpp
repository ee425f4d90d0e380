// The table of contents of ntk_alibi._core. The Python package validates all arguments before it
// calls; an exception from here is a bug there.
#include "bindings/pybind.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "Compiled core of ntk_alibi; see _core.pyi for the signatures.";
  module.attr("__version__") = NTK_ALIBI_VERSION;
  ntk_alibi::register_runtime(module);
  ntk_alibi::register_bias(module);
  ntk_alibi::register_attention_bias(module);
  ntk_alibi::register_attention(module);
}
