// The only file that includes pybind11, and what every binding shares.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/bias_tensor.h"

namespace py = pybind11;

namespace ntk_alibi {

// Slopes arrive broadcast to (batch, heads, queries) by NumPy: a broadcast axis has stride 0.
inline SlopeView view_slopes(const py::array_t<float>& slopes) {
  constexpr py::ssize_t size = sizeof(float);
  return {slopes.data(), slopes.strides(0) / size, slopes.strides(1) / size,
          slopes.strides(2) / size};
}

void register_attention(py::module_& module);
void register_bias(py::module_& module);
void register_runtime(py::module_& module);

}  // namespace ntk_alibi
