// Checks of arrays from Python. Each array is checked once, before the core sees its memory: the
// values, such as positions within a table, are the Python package's to check.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "bindings/pybind.h"

namespace ntk_alibi {

// A size that may be any.
constexpr py::ssize_t any_size = -1;

// Sizes of the axes of an array, four at most.
struct Sizes {
  Sizes(std::initializer_list<py::ssize_t> sizes) : count(static_cast<int>(sizes.size())) {
    std::copy(sizes.begin(), sizes.end(), size);
  }
  py::ssize_t size[4] = {};
  int count;
};

// Whether axes may have size 1 in place of their size, for all.
enum class Axes { whole, broadcast };

// Throws a ValueError unless the array has these axes.
void check_sizes(const char* name, const py::array& array, const Sizes& sizes,
                 Axes axes = Axes::whole);

// The sizes of an array of four axes, of which there must be so many.
Sizes sizes_of(const char* name, const py::array& array);

// Throws a ValueError unless the entries of the last axis are adjacent.
void check_adjacent(const char* name, const py::array& array);

// The same as check_sizes for an array that the core reads, or writes, from its first element to
// its last.
void check_contiguous(const char* name, const py::array& array, const Sizes& sizes);
void check_written(const char* name, const py::array& array, const Sizes& sizes);

// float32, float16, int8, and 16 bits of any other kind as bfloat16, which NumPy does not know.
// Throws a TypeError for other elements.
DType dtype_of(const char* name, const py::array& array);

// An array (batch, heads, rows, head_dim) of a dtype, or its copy if the elements of its rows are
// not adjacent or not aligned.
class Rows {
 public:
  Rows(const char* name, const py::array& array, DType dtype, const Sizes& sizes);
  DType dtype() const { return dtype_; }
  TensorView view() const;

 private:
  py::array array_;
  DType dtype_;
};

// The view of such an array that the core writes to, which is not copied.
TensorView written_rows(const char* name, py::array& array, DType dtype, const Sizes& sizes);

// The stride of an axis in elements, of which a field of a packed structure need not be a multiple.
// Nothing is read by the strides of an array without elements.
template <class T>
std::int64_t stride(const py::array_t<T>& array, int axis) {
  const auto size = static_cast<py::ssize_t>(sizeof(T));
  if (array.size() > 0 && array.shape(axis) > 1 && array.strides(axis) % size != 0)
    throw py::value_error("strides must be multiples of the size of an element");
  return array.strides(axis) / size;
}

// The same, and 0 for an axis of 1, whose entry counts for all.
template <class T>
std::int64_t broadcast_stride(const py::array_t<T>& array, int axis) {
  return array.shape(axis) == 1 ? 0 : stride(array, axis);
}

// The array has three axes, (1 or batch, 1 or heads, 1 or queries).
inline QueryView view_per_query(const py::array_t<float>& array) {
  return {array.data(), broadcast_stride(array, 0), broadcast_stride(array, 1),
          broadcast_stride(array, 2)};
}

}  // namespace ntk_alibi
