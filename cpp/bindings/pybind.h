// The only file that includes pybind11, and what every binding shares.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/bias_tensor.h"

namespace py = pybind11;

namespace ntk_alibi {

// Slopes are (1 or batch, heads, 1 or queries): an axis of 1 is broadcast.
inline SlopeView view_slopes(const py::array_t<float>& slopes) {
  const auto stride = [&](int axis) {
    return slopes.shape(axis) == 1 ? 0 : slopes.strides(axis) / py::ssize_t{sizeof(float)};
  };
  return {slopes.data(), stride(0), stride(1), stride(2)};
}

void register_attention(py::module_& module);
void register_bias(py::module_& module);
void register_runtime(py::module_& module);

}  // namespace ntk_alibi
