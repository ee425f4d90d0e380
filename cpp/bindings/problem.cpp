#include "bindings/problem.h"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "core/visibility.h"

namespace ntk_alibi {
namespace {

template <class T>
using Optional = std::optional<py::array_t<T>>;

// --- biases
// ----------------------------------------------------------------------------------------

// Keeps an array of a bias, with the sizes that are known without a problem.
template <class T>
const py::array_t<T>& keep(Bias& bias, const char* name, const py::array_t<T>& array,
                           const char* axes) {
  Sizes sizes{};
  for (const char* axis = axes; *axis != '\0'; ++axis) sizes.size[sizes.count++] = any_size;
  check_sizes(name, array, sizes);
  bias.arrays.push_back({name, array, axes});
  return array;
}

// The slopes of a side, (1 or batch, 1 or heads, 1 or queries). An infinite one hides its side.
QueryView keep_slopes(Bias& bias, const char* name, const py::array_t<float>& slopes) {
  keep(bias, name, slopes, "BHQ");
  const auto at = slopes.unchecked<3>();
  for (py::ssize_t b = 0; b < slopes.shape(0); ++b)
    for (py::ssize_t h = 0; h < slopes.shape(1); ++h)
      for (py::ssize_t i = 0; i < slopes.shape(2); ++i)
        bias.view.hides_sides = bias.view.hides_sides || std::isinf(at(b, h, i));
  return view_per_query(slopes);
}

void keep_table(Bias& bias, const py::array_t<float>& table, std::int64_t begin) {
  check_adjacent("table", keep(bias, "table", table, "h."));
  AttentionBias& view = bias.view;
  view.kind = BiasKind::table;
  view.table = table.data();
  view.table_head_stride = stride(table, 0);
  view.table_begin = begin;
  view.table_size = table.shape(1);
  view.table_bounds = std::make_shared<TableBounds>(view.table, table.shape(0),
                                                    view.table_head_stride, view.table_size);
}

void keep_sums(Bias& bias, const py::array_t<double>& sums) {
  check_adjacent("sums", keep(bias, "sums", sums, "Bhk"));
  bias.view.kind = BiasKind::sums;
  bias.view.sums = sums.data();
  bias.view.sums_batch_stride = broadcast_stride(sums, 0);
  bias.view.sums_head_stride = stride(sums, 1);
}

void keep_dense(Bias& bias, const py::array_t<float>& dense) {
  keep(bias, "dense", dense, "BHQK");
  bias.view.kind = BiasKind::dense;
  bias.view.dense = dense.data();
  for (int axis = 0; axis < 4; ++axis)
    bias.view.dense_strides[axis] = broadcast_stride(dense, axis);
}

Bias make_bias(const Optional<float>& left, const Optional<float>& right,
               const Optional<float>& table, std::int64_t table_begin, const Optional<double>& sums,
               const Optional<float>& dense) {
  if (left.has_value() != right.has_value() ||
      left.has_value() + table.has_value() + sums.has_value() + dense.has_value() > 1)
    throw py::value_error("a bias must be of slopes for both sides, a table, sums or dense");
  Bias bias;
  bias.view.kind = BiasKind::none;
  if (left) {
    bias.view.kind = BiasKind::two_sided;
    bias.view.left = keep_slopes(bias, "left", *left);
    bias.view.right = keep_slopes(bias, "right", *right);
  }
  if (table) keep_table(bias, *table, table_begin);
  if (sums) keep_sums(bias, *sums);
  if (dense) keep_dense(bias, *dense);
  return bias;
}

void check_bias(const Bias& bias, const AttentionProblem& problem) {
  for (const auto& [name, array, axes] : bias.arrays) {
    Sizes sizes{};
    for (const char* axis = axes; *axis != '\0'; ++axis) {
      py::ssize_t size = any_size;
      switch (*axis | 0x20) {  // in lower case
        case 'b': size = problem.batch; break;
        case 'h': size = problem.query_heads; break;
        case 'q': size = problem.query_length; break;
        case 'k': size = problem.key_length; break;
      }
      const bool for_all = *axis >= 'A' && *axis <= 'Z' && array.shape(sizes.count) == 1;
      sizes.size[sizes.count++] = for_all ? 1 : size;
    }
    check_sizes(name, array, sizes);
  }
  if (bias.view.kind == BiasKind::sums && problem.query_length > problem.key_length)
    throw py::value_error("sums must have an entry for each query, got more queries than keys");
}

// --- masks, positions and segments
// -----------------------------------------------------------------

// The mask is read before this returns.
std::shared_ptr<BlockMask> read_block_mask(const py::array_t<bool>& mask) {
  sizes_of("mask", mask);
  MaskView view{reinterpret_cast<const std::uint8_t*>(mask.data()), {}, {}};
  for (int axis = 0; axis < 4; ++axis) {
    view.shape[axis] = mask.shape(axis);
    view.strides[axis] = mask.shape(axis) == 1 ? 0 : mask.strides(axis);
  }
  py::gil_scoped_release release;
  return std::make_shared<BlockMask>(view);
}

PositionView view_positions(const char* name, const py::array_t<std::int32_t>& positions,
                            py::ssize_t batch, py::ssize_t length) {
  const bool one = positions.ndim() > 0 && positions.shape(0) == 1;
  check_sizes(name, positions, {one ? 1 : batch, length});
  check_adjacent(name, positions);
  return {positions.data(), one ? 0 : stride(positions, 0)};
}

// The segments of an array (segments, 6): begin and end of the rows, queries and keys of each.
std::vector<Segment> list_segments(const py::array_t<std::int64_t>& segments,
                                   const AttentionProblem& problem) {
  check_contiguous("segments", segments, {any_size, 6});
  const auto lies_within = [](const Range& range, std::int64_t size) {
    return 0 <= range.begin && range.begin <= range.end && range.end <= size;
  };
  std::vector<Segment> listed;
  const std::int64_t* row = segments.data();
  for (py::ssize_t t = 0; t < segments.shape(0); ++t, row += 6) {
    const Segment segment{{row[0], row[1]}, {row[2], row[3]}, {row[4], row[5]}};
    if (!lies_within(segment.rows, problem.batch) ||
        !lies_within(segment.queries, problem.query_length) ||
        !lies_within(segment.keys, problem.key_length))
      throw py::value_error("segments must lie within the call, got others");
    listed.push_back(segment);
  }
  return listed;
}

void check_pairs(const BlockMask& pairs, const AttentionProblem& problem) {
  const std::int64_t* shape = pairs.shape();
  const auto fits = [&](int axis, std::int64_t size) {
    return shape[axis] == size || (axis < 2 && shape[axis] == 1);
  };
  if (!(fits(0, problem.batch) && fits(1, problem.query_heads) && fits(2, problem.query_length) &&
        fits(3, problem.key_length)))
    throw py::value_error("pairs must be of the batch, heads, queries and keys of the call");
}

Problem make_problem(const std::array<std::int64_t, 4>& shape,
                     const std::array<std::int64_t, 4>& mask, std::shared_ptr<Bias> bias,
                     float scale, std::optional<double> skip_tolerance,
                     const Optional<float>& factors, const Optional<std::int32_t>& query_positions,
                     const Optional<std::int32_t>& key_positions,
                     const Optional<std::uint8_t>& key_mask,
                     const std::optional<std::shared_ptr<BlockMask>>& pairs,
                     const Optional<std::int64_t>& segments) {
  Problem made;
  AttentionProblem& problem = made.view;
  const auto [batch, heads, queries, keys] = shape;
  for (const std::int64_t size : shape)
    if (size < 0) throw py::value_error("shape must be of sizes >= 0, got " + std::to_string(size));
  problem.batch = batch, problem.query_heads = heads;
  problem.query_length = problem.query_pitch = queries;
  problem.key_length = problem.key_pitch = keys;
  problem.mask = {mask[0] != 0, mask[1], mask[2], mask[3]};
  problem.scale = scale;
  problem.skip_tolerance = skip_tolerance;
  check_bias(*bias, problem);
  problem.bias = bias->view;
  made.bias = std::move(bias);
  if (factors) {
    check_sizes("factors", *factors, {batch, heads, queries}, Axes::broadcast);
    problem.factors = view_per_query(*factors);
    made.kept.push_back(*factors);
  }
  if (query_positions) {
    problem.query_positions = view_positions("query_positions", *query_positions, batch, queries);
    made.kept.push_back(*query_positions);
  }
  if (key_positions) {
    problem.key_positions = view_positions("key_positions", *key_positions, batch, keys);
    made.kept.push_back(*key_positions);
  }
  if (key_mask) {
    check_contiguous("key_mask", *key_mask, {batch, keys});
    problem.key_mask = key_mask->data();
    made.kept.push_back(*key_mask);
  }
  if (pairs) {
    made.pairs = *pairs;
    check_pairs(*made.pairs, problem);
    problem.pairs.mask = made.pairs.get();
  }
  if (segments) {
    made.segments = list_segments(*segments, problem);
  } else if (key_positions || key_mask) {
    // To list all keys takes no time, and problems of equal calls are kept by the hundred.
    problem.visibility = std::make_shared<const Visibility>(problem);
  }
  return made;
}

}  // namespace

void register_problem(py::module_& module) {
  const auto none = [](const char* name) { return py::arg(name) = py::none(); };
  py::class_<Bias, std::shared_ptr<Bias>>(module, "Bias")
      .def(py::init(&make_bias), none("left"), none("right"), none("table"),
           py::arg("table_begin") = 0, none("sums"), none("dense"));
  py::class_<BlockMask, std::shared_ptr<BlockMask>>(module, "BlockMask")
      .def(py::init(&read_block_mask), py::arg("mask"));
  py::class_<Problem>(module, "Problem")
      .def(py::init(&make_problem), py::arg("shape"), py::arg("mask"), py::arg("bias").none(false),
           py::arg("scale"), py::arg("skip_tolerance"), none("factors"), none("query_positions"),
           none("key_positions"), none("key_mask"), none("pairs"), none("segments"));
}

}  // namespace ntk_alibi
