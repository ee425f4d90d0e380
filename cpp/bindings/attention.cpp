// Attention and its gradients.
#include "core/attention.h"

#include <algorithm>
#include <string>

#include "bindings/attention_bias.h"
#include "core/attention_gradient.h"
#include "core/block_mask.h"
#include "core/segments.h"
#include "core/skip_bounds.h"

namespace ntk_alibi {
namespace {

// What all calls of one kind share.
struct CallRule {
  float scale;
  MaskRule mask;
  std::optional<double> skip_tolerance;
};

// A mask of pairs, with the shape of the array that it was read from.
struct HeldMask {
  explicit HeldMask(const MaskView& view) : mask(view) {
    std::copy(view.shape, view.shape + 4, shape);
  }
  BlockMask mask;
  std::int64_t shape[4];
};

// Padding, positions, factors and segments of a call.
struct Tokens {
  std::optional<py::array_t<std::int32_t>> query_positions, key_positions;
  std::optional<py::array_t<std::uint8_t>> key_mask;
  std::optional<py::array_t<float>> factors;
  std::shared_ptr<HeldMask> pairs;
  // (segments, 6): begin and end of the rows, queries and keys of packed segments.
  std::optional<py::array_t<std::int64_t>> segments;

  void add_to(AttentionProblem& problem) const;
  std::vector<Segment> listed_segments(const AttentionProblem& problem) const;
};

bool are_packed(const Tokens* tokens) { return tokens != nullptr && tokens->segments; }

// Where the gradients of the bias go.
struct BiasGradients {
  std::optional<py::array_t<float>> left, right, far_left, far_right;
  std::optional<py::array_t<double>> table, sums;
  std::optional<py::array_t<float>> dense;
};

// Scales (batch, key heads, keys) of int8 keys and values, adjacent for the keys of a head.
struct KeyScales {
  py::array_t<float> key, value;
};

ScaleView view_scales(const char* name, const py::array_t<float>& scales, const Sizes& sizes) {
  check_sizes(name, scales, sizes);
  check_adjacent(name, scales);
  return {scales.data(), stride(scales, 0), stride(scales, 1)};
}

PositionView view_positions(const char* name,
                            const std::optional<py::array_t<std::int32_t>>& positions,
                            py::ssize_t batch, py::ssize_t length) {
  if (!positions) return {nullptr, 0};
  check_sizes(name, *positions,
              {positions->ndim() > 0 && positions->shape(0) == 1 ? 1 : batch, length});
  check_adjacent(name, *positions);
  return {positions->data(), positions->shape(0) == 1 ? 0 : stride(*positions, 0)};
}

void Tokens::add_to(AttentionProblem& problem) const {
  const py::ssize_t batch = problem.batch, queries = problem.query_length;
  const py::ssize_t keys = problem.key_length;
  problem.query_positions = view_positions("query_positions", query_positions, batch, queries);
  problem.key_positions = view_positions("key_positions", key_positions, batch, keys);
  if (key_mask) {
    check_contiguous("key_mask", *key_mask, {batch, keys});
    problem.key_mask = key_mask->data();
  }
  if (factors) {
    check_sizes("factors", *factors, {batch, problem.query_heads, queries}, Axes::broadcast);
    problem.factors = view_per_query(*factors);
  }
  if (pairs != nullptr) {
    const auto fits = [&](int axis, std::int64_t size) {
      return pairs->shape[axis] == size || (axis < 2 && pairs->shape[axis] == 1);
    };
    if (!(fits(0, batch) && fits(1, problem.query_heads) && fits(2, queries) && fits(3, keys)))
      throw py::value_error("pairs must be of the batch, heads, queries and keys of the call");
    problem.pairs.mask = &pairs->mask;
  }
}

std::vector<Segment> Tokens::listed_segments(const AttentionProblem& problem) const {
  check_contiguous("segments", *segments, {any_size, 6});
  const auto lies_within = [](const Range& range, std::int64_t size) {
    return 0 <= range.begin && range.begin <= range.end && range.end <= size;
  };
  std::vector<Segment> listed;
  const std::int64_t* row = segments->data();
  for (py::ssize_t t = 0; t < segments->shape(0); ++t, row += 6) {
    const Segment segment{{row[0], row[1]}, {row[2], row[3]}, {row[4], row[5]}};
    if (!lies_within(segment.rows, problem.batch) ||
        !lies_within(segment.queries, problem.query_length) ||
        !lies_within(segment.keys, problem.key_length))
      throw py::value_error("segments must lie within the call, got others");
    listed.push_back(segment);
  }
  return listed;
}

// Checks norms (batch, key heads, blocks, 3), the fields of BlockNorms, and centres (batch, key
// heads, head_dim) of keys, and returns the number of blocks of a head.
std::int64_t check_norms(const py::array_t<float>& norms, const py::array_t<float>& centres,
                         const Sizes& keys) {
  static_assert(sizeof(BlockNorms) == 3 * sizeof(float), "seen as three floats from Python");
  const auto [batch, heads, length, head_dim] = keys.size;
  check_contiguous("norms", norms, {batch, heads, any_size, 3});
  check_contiguous("centres", centres, {batch, heads, head_dim});
  if (norms.shape(2) * keys_per_block < length)
    throw py::value_error("norms must have a block for every " + std::to_string(keys_per_block) +
                          " keys, got " + std::to_string(norms.shape(2)));
  return norms.shape(2);
}

// The memory of an array that the core fills; null without one.
template <class T>
T* written(const char* name, std::optional<py::array_t<T>>& array, const Sizes& sizes) {
  if (!array) return nullptr;
  check_written(name, *array, sizes);
  return array->mutable_data();
}

template <class T>
const T* contiguous(const char* name, const std::optional<py::array_t<T>>& array,
                    const Sizes& sizes) {
  if (!array) return nullptr;
  check_contiguous(name, *array, sizes);
  return array->data();
}

void check_head_dim(py::ssize_t head_dim) {
  if (head_dim < 1 || head_dim > greatest_head_dim)
    throw py::value_error("head_dim must be between 1 and " + std::to_string(greatest_head_dim) +
                          ", got " + std::to_string(head_dim));
}

// The inputs of a call; they stay alive while the core reads them.
struct Inputs {
  DType dtype;
  Sizes queries, keys;
  Rows query, key, value;

  Inputs(const py::array& given_query, const py::array& given_key, const py::array& given_value,
         bool quantized)
      : dtype(dtype_of("query", given_query)),
        queries(sizes_of("query", given_query)),
        keys(sizes_of("key", given_key)),
        query("query", given_query, dtype, queries),
        key("key", given_key, quantized ? DType::int8 : dtype, keys),
        value("value", given_value, quantized ? DType::int8 : dtype, keys) {
    if (dtype == DType::int8) throw py::type_error("query must be floating, got int8");
    const bool fit = keys.size[0] == queries.size[0] && keys.size[3] == queries.size[3] &&
                     queries.size[1] % std::max<py::ssize_t>(keys.size[1], 1) == 0 &&
                     (keys.size[1] > 0 || queries.size[1] == 0);
    if (!fit)
      throw py::value_error(
          "key must have query's batch and head_dim, and query a multiple of its heads, got "
          "others");
    check_head_dim(queries.size[3]);
  }

  AttentionProblem problem(const HeldBias& bias, const CallRule& rule, const Tokens* tokens,
                           const Dropout* dropout) const {
    AttentionProblem problem{};
    problem.dtype = dtype;
    problem.query = query.view();
    problem.key = key.view();
    problem.value = value.view();
    problem.batch = queries.size[0];
    problem.query_heads = queries.size[1];
    problem.key_heads = keys.size[1];
    problem.query_length = queries.size[2];
    problem.key_length = keys.size[2];
    problem.query_pitch = problem.query_length;
    problem.key_pitch = problem.key_length;
    problem.head_dim = queries.size[3];
    problem.scale = rule.scale;
    problem.mask = rule.mask;
    problem.skip_tolerance = rule.skip_tolerance;
    bias.check(problem);
    problem.bias = bias.bias;
    if (dropout != nullptr) problem.dropout = *dropout;
    if (tokens != nullptr) tokens->add_to(problem);
    return problem;
  }
};

void bind_attention(
    const py::array& query, const py::array& key, const py::array& value, const HeldBias& bias,
    const CallRule& rule, const Tokens* tokens, py::array output,
    std::optional<py::array_t<double>> logsumexp,
    std::optional<py::array_t<std::int64_t>> block_counts,
    const std::optional<std::pair<py::array_t<float>, py::array_t<float>>>& key_norms,
    const std::optional<py::array_t<double>>& known_logsumexps, const KeyScales* scales,
    const Dropout* dropout) {
  const Inputs inputs(query, key, value, scales != nullptr);
  AttentionProblem problem = inputs.problem(bias, rule, tokens, dropout);
  const py::ssize_t batch = problem.batch, heads = problem.query_heads;
  const py::ssize_t key_heads = problem.key_heads;
  const Sizes per_query{batch, heads, problem.query_length};
  problem.output = written_rows("output", output, problem.dtype, inputs.queries);
  problem.logsumexp = written("logsumexp", logsumexp, per_query);
  problem.block_counts = written("block_counts", block_counts, {batch, heads, kinds_of_counts});
  problem.known_logsumexps = contiguous("known_logsumexps", known_logsumexps, per_query);
  if (scales != nullptr) {
    const Sizes per_key{batch, key_heads, problem.key_length};
    problem.key_scales = view_scales("key scales", scales->key, per_key);
    problem.value_scales = view_scales("value scales", scales->value, per_key);
  }
  if (key_norms) {
    const auto& [norms, centres] = *key_norms;
    problem.key_norms_stride = check_norms(norms, centres, inputs.keys);
    problem.key_norms = reinterpret_cast<const BlockNorms*>(norms.data());
    problem.key_centres = centres.data();
  }
  if (are_packed(tokens)) {
    std::vector<Segment> segments = tokens->listed_segments(problem);
    py::gil_scoped_release release;
    return attention_of_segments(problem, std::move(segments));
  }
  py::gil_scoped_release release;
  attention(problem);
}

void bind_attention_gradients(const py::array& query, const py::array& key, const py::array& value,
                              const HeldBias& bias, const CallRule& rule, const Tokens* tokens,
                              const py::array& output, const py::array_t<double>& logsumexp,
                              const py::array& output_gradient,
                              const std::optional<py::array_t<float>>& logsumexp_gradient,
                              py::array query_gradient, py::array key_gradient,
                              py::array value_gradient, BiasGradients& of_bias,
                              const Dropout* dropout) {
  const Inputs inputs(query, key, value, false);
  AttentionProblem problem = inputs.problem(bias, rule, tokens, dropout);
  const py::ssize_t batch = problem.batch, heads = problem.query_heads;
  const Sizes per_query{batch, heads, problem.query_length};
  const Rows forward_output("output", output, inputs.dtype, inputs.queries);
  const Rows incoming("output_gradient", output_gradient, inputs.dtype, inputs.queries);
  problem.output = forward_output.view();
  check_contiguous("logsumexp", logsumexp, per_query);
  problem.logsumexp = const_cast<double*>(logsumexp.data());  // only read
  AttentionGradients gradients{};
  gradients.output_gradient = incoming.view();
  gradients.logsumexp_gradient = contiguous("logsumexp_gradient", logsumexp_gradient, per_query);
  gradients.query = written_rows("query_gradient", query_gradient, inputs.dtype, inputs.queries);
  gradients.key = written_rows("key_gradient", key_gradient, inputs.dtype, inputs.keys);
  gradients.value = written_rows("value_gradient", value_gradient, inputs.dtype, inputs.keys);
  gradients.slopes[0] = written("left", of_bias.left, per_query);
  gradients.slopes[1] = written("right", of_bias.right, per_query);
  gradients.slopes[2] = written("far_left", of_bias.far_left, per_query);
  gradients.slopes[3] = written("far_right", of_bias.far_right, per_query);
  gradients.table = written("table", of_bias.table, {heads, problem.bias.table_size});
  gradients.sums = written("sums", of_bias.sums, {batch, heads, problem.key_length});
  gradients.dense =
      written("dense", of_bias.dense, {batch, heads, problem.query_length, problem.key_length});
  if (are_packed(tokens)) {
    std::vector<Segment> segments = tokens->listed_segments(problem);
    py::gil_scoped_release release;
    return attention_gradients_of_segments(problem, gradients, std::move(segments));
  }
  py::gil_scoped_release release;
  attention_gradients(problem, gradients);
}

// The mask is read before this returns.
std::shared_ptr<HeldMask> read_block_mask(const py::array_t<bool>& mask) {
  check_sizes("mask", mask, {any_size, any_size, any_size, any_size});
  MaskView view{reinterpret_cast<const std::uint8_t*>(mask.data()), {}, {}};
  for (int axis = 0; axis < 4; ++axis) {
    view.shape[axis] = mask.shape(axis);
    view.strides[axis] = mask.shape(axis) == 1 ? 0 : mask.strides(axis);
  }
  py::gil_scoped_release release;
  return std::make_shared<HeldMask>(view);
}

void bind_measure_key_norms(const py::array& key, std::int64_t known, py::array_t<float> norms,
                            py::array_t<float> centres,
                            const std::optional<py::array_t<float>>& scales) {
  const DType dtype = dtype_of("key", key);
  if ((dtype == DType::int8) != scales.has_value())
    throw py::type_error("scales must be given with int8 keys, and with no others");
  const Sizes sizes = sizes_of("key", key);
  check_head_dim(sizes.size[3]);
  const Rows keys("key", key, dtype, sizes);
  const KeyNormsShape shape{sizes.size[0], sizes.size[1], sizes.size[2], sizes.size[3]};
  if (known < 0 || known > shape.key_length)
    throw py::value_error("known must be between 0 and the number of keys, got " +
                          std::to_string(known));
  const std::int64_t norms_stride = check_norms(norms, centres, sizes);
  ScaleView scale_view{};
  if (scales)
    scale_view = view_scales("scales", *scales, {shape.batch, shape.key_heads, shape.key_length});
  const TensorView view = keys.view();
  BlockNorms* destination = reinterpret_cast<BlockNorms*>(norms.mutable_data());
  float* centre_data = centres.mutable_data();
  py::gil_scoped_release release;
  measure_key_norms(shape, view, scale_view, dtype, known, destination, norms_stride, centre_data);
}

}  // namespace

void register_attention(py::module_& module) {
  py::class_<HeldMask, std::shared_ptr<HeldMask>>(module, "BlockMask")
      .def(py::init(&read_block_mask), py::arg("mask"));
  py::class_<CallRule>(module, "CallRule")
      .def(py::init([](float scale, std::optional<double> skip_tolerance,
                       const std::vector<std::int64_t>& mask_options) {
             if (mask_options.size() != 4)
               throw py::value_error("mask_options must be four integers, got " +
                                     std::to_string(mask_options.size()));
             return CallRule{scale, MaskRule::from_integers(mask_options), skip_tolerance};
           }),
           py::arg("scale"), py::arg("skip_tolerance"), py::arg("mask_options"));
  py::class_<Tokens>(module, "Tokens")
      .def(py::init<std::optional<py::array_t<std::int32_t>>,
                    std::optional<py::array_t<std::int32_t>>,
                    std::optional<py::array_t<std::uint8_t>>, std::optional<py::array_t<float>>,
                    std::shared_ptr<HeldMask>, std::optional<py::array_t<std::int64_t>>>(),
           py::arg("query_positions"), py::arg("key_positions"), py::arg("key_mask"),
           py::arg("factors") = py::none(), py::arg("pairs") = nullptr,
           py::arg("segments") = py::none());
  py::class_<KeyScales>(module, "KeyScales")
      .def(py::init<py::array_t<float>, py::array_t<float>>(), py::arg("key"), py::arg("value"));
  py::class_<BiasGradients>(module, "BiasGradients")
      .def(py::init<std::optional<py::array_t<float>>, std::optional<py::array_t<float>>,
                    std::optional<py::array_t<float>>, std::optional<py::array_t<float>>,
                    std::optional<py::array_t<double>>, std::optional<py::array_t<double>>,
                    std::optional<py::array_t<float>>>(),
           py::arg("left").noconvert() = py::none(), py::arg("right").noconvert() = py::none(),
           py::arg("far_left").noconvert() = py::none(),
           py::arg("far_right").noconvert() = py::none(), py::arg("table").noconvert() = py::none(),
           py::arg("sums").noconvert() = py::none(), py::arg("dense").noconvert() = py::none());
  module.def("attention", &bind_attention, py::arg("query"), py::arg("key"), py::arg("value"),
             py::arg("bias"), py::arg("rule"), py::arg("tokens"), py::arg("output"),
             py::arg("logsumexp").noconvert() = py::none(),
             py::arg("block_counts").noconvert() = py::none(), py::arg("key_norms") = py::none(),
             py::arg("known_logsumexps") = py::none(), py::arg("scales") = py::none(),
             py::arg("dropout") = py::none());
  module.def("attention_gradients", &bind_attention_gradients, py::arg("query"), py::arg("key"),
             py::arg("value"), py::arg("bias"), py::arg("rule"), py::arg("tokens"),
             py::arg("output"), py::arg("logsumexp"), py::arg("output_gradient"),
             py::arg("logsumexp_gradient"), py::arg("query_gradient"), py::arg("key_gradient"),
             py::arg("value_gradient"), py::arg("of_bias"), py::arg("dropout") = py::none());
  module.attr("keys_per_block") = keys_per_block;
  module.def("measure_key_norms", &bind_measure_key_norms, py::arg("key"), py::arg("known"),
             py::arg("norms").noconvert(), py::arg("centres").noconvert(),
             py::arg("scales") = py::none());
}

}  // namespace ntk_alibi
