// The only file that includes pybind11, and declarations that all bindings share.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/tensor_view.h"

namespace py = pybind11;

namespace ntk_alibi {

// The stride of an axis in elements, of which a field of a packed structure need not be a multiple.
// Nothing is read by the strides of an array without elements.
template <class T>
std::int64_t stride(const py::array_t<T>& array, int axis) {
  const auto size = static_cast<py::ssize_t>(sizeof(T));
  if (array.size() > 0 && array.shape(axis) > 1 && array.strides(axis) % size != 0)
    throw py::value_error("strides must be multiples of the size of an element");
  return array.strides(axis) / size;
}

// The array is (1 or batch, 1 or heads, 1 or queries): an axis of 1 is broadcast.
inline QueryView view_per_query(const py::array_t<float>& array) {
  const auto stride = [&](int axis) {
    return array.shape(axis) == 1 ? 0 : ntk_alibi::stride(array, axis);
  };
  return {array.data(), stride(0), stride(1), stride(2)};
}

void register_attention(py::module_& module);
void register_attention_bias(py::module_& module);
void register_bias(py::module_& module);
void register_runtime(py::module_& module);

}  // namespace ntk_alibi
