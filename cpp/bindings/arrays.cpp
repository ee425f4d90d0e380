#include "bindings/arrays.h"

#include <string>

namespace ntk_alibi {
namespace {

std::string text_of(const py::ssize_t* sizes, py::ssize_t count) {
  std::string text = "(";
  for (py::ssize_t axis = 0; axis < count; ++axis) {
    text += axis == 0 ? "" : ", ";
    text += sizes[axis] == any_size ? "any" : std::to_string(sizes[axis]);
  }
  return text + ")";
}

[[noreturn]] void refuse(const char* name, const std::string& expected, const std::string& got) {
  throw py::value_error(std::string(name) + " must " + expected + ", got " + got);
}

void check_writable(const char* name, const py::array& array) {
  if (!array.writeable()) refuse(name, "be writable", "a read-only array");
}

bool is_aligned(const py::array& array) {
  return (array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) != 0;
}

// Whether the elements of the last axis are adjacent. NumPy gives an array without elements any
// strides.
bool has_adjacent(const py::array& array) {
  const py::ssize_t last = array.ndim() - 1;
  return array.shape(last) <= 1 || array.strides(last) == array.itemsize() || array.size() == 0;
}

void check_dtype(const char* name, const py::array& array, DType dtype) {
  if (dtype_of(name, array) != dtype)
    throw py::type_error(std::string(name) + " must have the dtype of the other arrays, got " +
                         py::str(array.dtype()).cast<std::string>());
}

TensorView view_of(const py::array& array) {
  const py::ssize_t size = array.itemsize();
  return {const_cast<void*>(array.data()), array.strides(0) / size, array.strides(1) / size,
          array.strides(2) / size};
}

}  // namespace

void check_sizes(const char* name, const py::array& array, const Sizes& sizes, Axes axes) {
  bool fit = array.ndim() == sizes.count;
  for (int axis = 0; fit && axis < sizes.count; ++axis) {
    const py::ssize_t expected = sizes.size[axis], size = array.shape(axis);
    fit = expected == any_size || size == expected || (axes == Axes::broadcast && size == 1);
  }
  if (!fit)
    refuse(name, "have shape " + text_of(sizes.size, sizes.count),
           text_of(array.shape(), array.ndim()));
}

Sizes sizes_of(const char* name, const py::array& array) {
  check_sizes(name, array, {any_size, any_size, any_size, any_size});
  return {array.shape(0), array.shape(1), array.shape(2), array.shape(3)};
}

void check_adjacent(const char* name, const py::array& array) {
  if (!has_adjacent(array)) refuse(name, "have adjacent entries in rows", "others");
}

void check_contiguous(const char* name, const py::array& array, const Sizes& sizes) {
  check_sizes(name, array, sizes);
  if ((array.flags() & py::array::c_style) == 0 || !is_aligned(array))
    refuse(name, "be contiguous and aligned", "another array");
}

void check_written(const char* name, const py::array& array, const Sizes& sizes) {
  check_contiguous(name, array, sizes);
  check_writable(name, array);
}

DType dtype_of(const char* name, const py::array& array) {
  const py::dtype dtype = array.dtype();
  const char order = dtype.byteorder();
  if (order == '=' || order == '|') switch (dtype.char_()) {
      case 'f': return DType::float32;
      case 'e': return DType::float16;
      case 'b': return DType::int8;
      default:
        if (dtype.itemsize() == 2) return DType::bfloat16;
    }
  throw py::type_error(std::string(name) +
                       " must be of native float32, float16, int8, or 16 bits for bfloat16, got " +
                       py::str(dtype).cast<std::string>());
}

Rows::Rows(const char* name, const py::array& array, DType dtype, const Sizes& sizes)
    : array_(array), dtype_(dtype) {
  check_sizes(name, array, sizes);
  check_dtype(name, array, dtype);
  if (!has_adjacent(array) || !is_aligned(array)) array_ = py::array(array.attr("copy")());
}

TensorView Rows::view() const { return view_of(array_); }

TensorView written_rows(const char* name, py::array& array, DType dtype, const Sizes& sizes) {
  check_sizes(name, array, sizes);
  check_dtype(name, array, dtype);
  if (!has_adjacent(array) || !is_aligned(array))
    refuse(name, "have adjacent and aligned elements in rows", "others");
  check_writable(name, array);
  return view_of(array);
}

}  // namespace ntk_alibi
