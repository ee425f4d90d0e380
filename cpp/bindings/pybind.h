// The only file that includes pybind11, and declarations that all bindings share. An argument that
// may be None is a std::optional: for a pointer, pybind11 converts all arguments a second time.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/tensor_view.h"

namespace py = pybind11;

namespace ntk_alibi {

void register_attention(py::module_& module);
void register_bias(py::module_& module);
void register_dropout(py::module_& module);
void register_merge(py::module_& module);
void register_problem(py::module_& module);
void register_runtime(py::module_& module);

}  // namespace ntk_alibi
