// Attention and its gradients.
#include "core/attention.h"

#include "bindings/pybind.h"
#include "core/attention_gradient.h"
#include "core/block_mask.h"
#include "core/dropout.h"
#include "core/merge.h"
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

// Padding, positions, factors and segments of a call.
struct Tokens {
  std::optional<py::array_t<std::int32_t>> query_positions, key_positions;
  std::optional<py::array_t<std::uint8_t>> key_mask;  // contiguous
  std::optional<py::array_t<float>> factors;
  std::shared_ptr<BlockMask> pairs;
  // (segments, 6), contiguous: begin and end of the rows, queries and keys of packed segments.
  std::optional<py::array_t<std::int64_t, py::array::c_style>> segments;

  std::vector<Segment> listed_segments() const {
    std::vector<Segment> listed;
    const std::int64_t* row = segments->data();
    for (py::ssize_t t = 0; t < segments->shape(0); ++t, row += 6)
      listed.push_back({{row[0], row[1]}, {row[2], row[3]}, {row[4], row[5]}});
    return listed;
  }
};

bool are_packed(const Tokens* tokens) { return tokens != nullptr && tokens->segments; }

// Where the gradients of the bias go.
struct BiasGradients {
  std::optional<py::array_t<float>> left, right, far_left, far_right;
  std::optional<py::array_t<double>> table, sums;
  std::optional<py::array_t<float>> dense;
};

// float32, float16, int8, and 16 bits of any other kind as bfloat16, which NumPy does not know.
DType dtype_of(const py::array& array) {
  switch (array.dtype().char_()) {
    case 'f': return DType::float32;
    case 'e': return DType::float16;
    case 'b': return DType::int8;
    default: return DType::bfloat16;
  }
}

// The array, or a copy of it if the elements of its rows are not adjacent or not aligned.
py::array readable(const py::array& array) {
  const py::ssize_t last = array.ndim() - 1;
  const bool adjacent = array.shape(last) <= 1 || array.strides(last) == array.itemsize();
  const bool aligned = array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_;
  return adjacent && aligned ? array : py::array(array.attr("copy")());
}

TensorView view_tensor(const py::array& array) {
  const py::ssize_t size = array.itemsize();
  return {const_cast<void*>(array.data()), array.strides(0) / size, array.strides(1) / size,
          array.strides(2) / size};
}

// Scales (batch, key heads, keys) of int8 keys and values, adjacent for the keys of a head.
struct KeyScales {
  py::array_t<float> key, value;
};

ScaleView view_scales(const py::array_t<float>& scales) {
  return {scales.data(), stride(scales, 0), stride(scales, 1)};
}

PositionView view_positions(const std::optional<py::array_t<std::int32_t>>& positions) {
  if (!positions) return {nullptr, 0};
  return {positions->data(), positions->shape(0) == 1 ? 0 : stride(*positions, 0)};
}

template <class T>
T* data_of(std::optional<py::array_t<T>>& array) {
  return array ? array->mutable_data() : nullptr;
}

template <class T>
const T* data_of(const std::optional<py::array_t<T>>& array) {
  return array ? array->data() : nullptr;
}

// The inputs of a call; they stay alive while the core reads them.
struct Inputs {
  py::array query, key, value;

  AttentionProblem problem(const AttentionBias& bias, const CallRule& rule, const Tokens* tokens,
                           const Dropout* dropout) const {
    AttentionProblem problem{};
    problem.dtype = dtype_of(query);
    problem.query = view_tensor(query);
    problem.key = view_tensor(key);
    problem.value = view_tensor(value);
    problem.batch = query.shape(0);
    problem.query_heads = query.shape(1);
    problem.key_heads = key.shape(1);
    problem.query_length = query.shape(2);
    problem.key_length = key.shape(2);
    problem.query_pitch = problem.query_length;
    problem.key_pitch = problem.key_length;
    problem.head_dim = query.shape(3);
    problem.scale = rule.scale;
    problem.mask = rule.mask;
    problem.skip_tolerance = rule.skip_tolerance;
    problem.bias = bias;
    if (dropout != nullptr) problem.dropout = *dropout;
    if (tokens != nullptr) {
      problem.query_positions = view_positions(tokens->query_positions);
      problem.key_positions = view_positions(tokens->key_positions);
      problem.key_mask = tokens->key_mask ? tokens->key_mask->data() : nullptr;
      problem.pairs.mask = tokens->pairs.get();
      if (tokens->factors) problem.factors = view_per_query(*tokens->factors);
    }
    return problem;
  }
};

void bind_attention(
    const py::array& query, const py::array& key, const py::array& value, const AttentionBias& bias,
    const CallRule& rule, const Tokens* tokens, py::array output,
    std::optional<py::array_t<double>> logsumexp,
    std::optional<py::array_t<std::int64_t>> block_counts,
    const std::optional<std::pair<py::array_t<float>, py::array_t<float>>>& key_norms,
    const std::optional<py::array_t<double, py::array::c_style>>& known_logsumexps,
    const KeyScales* scales, const Dropout* dropout) {
  const Inputs inputs{readable(query), readable(key), readable(value)};
  AttentionProblem problem = inputs.problem(bias, rule, tokens, dropout);
  problem.output = view_tensor(output);
  problem.logsumexp = data_of(logsumexp);
  problem.block_counts = data_of(block_counts);
  problem.known_logsumexps = known_logsumexps ? known_logsumexps->data() : nullptr;
  if (scales != nullptr) {
    problem.key_scales = view_scales(scales->key);
    problem.value_scales = view_scales(scales->value);
  }
  if (key_norms) {
    problem.key_norms = reinterpret_cast<const BlockNorms*>(key_norms->first.data());
    problem.key_norms_stride = key_norms->first.shape(2);
    problem.key_centres = key_norms->second.data();
  }
  if (are_packed(tokens)) {
    std::vector<Segment> segments = tokens->listed_segments();
    py::gil_scoped_release release;
    return attention_of_segments(problem, std::move(segments));
  }
  py::gil_scoped_release release;
  attention(problem);
}

void bind_attention_gradients(const py::array& query, const py::array& key, const py::array& value,
                              const AttentionBias& bias, const CallRule& rule, const Tokens* tokens,
                              const py::array& output, const py::array_t<double>& logsumexp,
                              const py::array& output_gradient,
                              const std::optional<py::array_t<float>>& logsumexp_gradient,
                              py::array query_gradient, py::array key_gradient,
                              py::array value_gradient, BiasGradients& of_bias,
                              const Dropout* dropout) {
  const Inputs inputs{readable(query), readable(key), readable(value)};
  const py::array forward_output = readable(output), incoming = readable(output_gradient);
  AttentionProblem problem = inputs.problem(bias, rule, tokens, dropout);
  problem.output = view_tensor(forward_output);
  problem.logsumexp = const_cast<double*>(logsumexp.data());  // only read
  AttentionGradients gradients{};
  gradients.output_gradient = view_tensor(incoming);
  gradients.logsumexp_gradient = data_of(logsumexp_gradient);
  gradients.query = view_tensor(query_gradient);
  gradients.key = view_tensor(key_gradient);
  gradients.value = view_tensor(value_gradient);
  gradients.slopes[0] = data_of(of_bias.left);
  gradients.slopes[1] = data_of(of_bias.right);
  gradients.slopes[2] = data_of(of_bias.far_left);
  gradients.slopes[3] = data_of(of_bias.far_right);
  gradients.table = data_of(of_bias.table);
  gradients.sums = data_of(of_bias.sums);
  gradients.dense = data_of(of_bias.dense);
  if (are_packed(tokens)) {
    std::vector<Segment> segments = tokens->listed_segments();
    py::gil_scoped_release release;
    return attention_gradients_of_segments(problem, gradients, std::move(segments));
  }
  py::gil_scoped_release release;
  attention_gradients(problem, gradients);
}

// The mask is read before this returns.
std::shared_ptr<BlockMask> read_block_mask(const py::array_t<bool>& mask) {
  MaskView view{reinterpret_cast<const std::uint8_t*>(mask.data()), {}, {}};
  for (int axis = 0; axis < 4; ++axis) {
    view.shape[axis] = mask.shape(axis);
    view.strides[axis] = mask.shape(axis) == 1 ? 0 : mask.strides(axis);
  }
  py::gil_scoped_release release;
  return std::make_shared<BlockMask>(view);
}

// One number of 16 bits for each pair of (batch, heads, queries, keys).
py::array_t<std::uint16_t> bind_random_numbers(const Dropout& dropout,
                                               const std::array<py::ssize_t, 4>& shape) {
  py::array_t<std::uint16_t> out(shape);
  std::uint16_t* drawn = out.mutable_data();
  py::gil_scoped_release release;
  random_numbers({shape[0], shape[1], shape[2], shape[3]}, dropout, drawn);
  return out;
}

void bind_merge(const std::vector<py::array>& outputs,
                const std::vector<py::array_t<double, py::array::c_style>>& logsumexps,
                py::array output, py::array_t<double> logsumexp) {
  const MergeShape shape{output.shape(0), output.shape(1), output.shape(2), output.shape(3)};
  const DType dtype = dtype_of(output);
  std::vector<py::array> kept;
  std::vector<TensorView> views;
  std::vector<const double*> logs;
  for (const py::array& part : outputs)
    views.push_back(view_tensor(kept.emplace_back(readable(part))));
  for (const auto& part : logsumexps) logs.push_back(part.data());
  const TensorView destination = view_tensor(output);
  double* log_destination = logsumexp.mutable_data();
  py::gil_scoped_release release;
  merge(shape, dtype, views, logs, destination, log_destination);
}

// norms: (batch, key heads, blocks, 3), the fields of BlockNorms. centres: (batch, key heads,
// head_dim).
void bind_measure_key_norms(const py::array& key, std::int64_t known, py::array_t<float> norms,
                            py::array_t<float> centres,
                            const std::optional<py::array_t<float>>& scales) {
  static_assert(sizeof(BlockNorms) == 3 * sizeof(float), "seen as three floats from Python");
  const py::array keys = readable(key);
  const KeyNormsShape shape{keys.shape(0), keys.shape(1), keys.shape(2), keys.shape(3)};
  const TensorView view = view_tensor(keys);
  const ScaleView scale_view = scales ? view_scales(*scales) : ScaleView{};
  BlockNorms* destination = reinterpret_cast<BlockNorms*>(norms.mutable_data());
  const std::int64_t norms_stride = norms.shape(2);
  float* centre_data = centres.mutable_data();
  const DType dtype = dtype_of(keys);
  py::gil_scoped_release release;
  measure_key_norms(shape, view, scale_view, dtype, known, destination, norms_stride, centre_data);
}

}  // namespace

void register_attention(py::module_& module) {
  py::class_<BlockMask, std::shared_ptr<BlockMask>>(module, "BlockMask")
      .def(py::init(&read_block_mask), py::arg("mask"));
  py::class_<CallRule>(module, "CallRule")
      .def(py::init([](float scale, std::optional<double> skip_tolerance,
                       const std::vector<std::int64_t>& mask_options) {
             return CallRule{scale, MaskRule::from_integers(mask_options), skip_tolerance};
           }),
           py::arg("scale"), py::arg("skip_tolerance"), py::arg("mask_options"));
  py::class_<Tokens>(module, "Tokens")
      .def(py::init<std::optional<py::array_t<std::int32_t>>,
                    std::optional<py::array_t<std::int32_t>>,
                    std::optional<py::array_t<std::uint8_t>>, std::optional<py::array_t<float>>,
                    std::shared_ptr<BlockMask>,
                    std::optional<py::array_t<std::int64_t, py::array::c_style>>>(),
           py::arg("query_positions"), py::arg("key_positions"), py::arg("key_mask"),
           py::arg("factors") = py::none(), py::arg("pairs") = nullptr,
           py::arg("segments") = py::none());
  py::class_<KeyScales>(module, "KeyScales")
      .def(py::init<py::array_t<float>, py::array_t<float>>(), py::arg("key"), py::arg("value"));
  py::class_<Dropout>(module, "Dropout")
      .def(py::init([](std::int32_t least_kept, std::uint64_t seed, std::uint32_t row,
                       std::uint32_t head, std::uint32_t query, std::int64_t key) {
             constexpr std::int32_t all = 1 << 16;
             const std::int32_t kept = all - least_kept;
             const float factor = kept > 0 ? static_cast<float>(1.0 * all / kept) : 0.0f;
             return Dropout{
                 least_kept,
                 factor,
                 {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
                 row,
                 head,
                 query,
                 key};
           }),
           py::arg("least_kept"), py::arg("seed"), py::arg("row"), py::arg("head"),
           py::arg("query"), py::arg("key"));
  py::class_<BiasGradients>(module, "BiasGradients")
      .def(py::init<std::optional<py::array_t<float>>, std::optional<py::array_t<float>>,
                    std::optional<py::array_t<float>>, std::optional<py::array_t<float>>,
                    std::optional<py::array_t<double>>, std::optional<py::array_t<double>>,
                    std::optional<py::array_t<float>>>(),
           py::arg("left") = py::none(), py::arg("right") = py::none(),
           py::arg("far_left") = py::none(), py::arg("far_right") = py::none(),
           py::arg("table") = py::none(), py::arg("sums") = py::none(),
           py::arg("dense") = py::none());
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
  module.def("random_numbers", &bind_random_numbers, py::arg("dropout"), py::arg("shape"));
  module.def("merge", &bind_merge, py::arg("outputs"), py::arg("logsumexps"), py::arg("output"),
             py::arg("logsumexp").noconvert());
  module.attr("keys_per_block") = keys_per_block;
  module.attr("extra_score_roundings") = extra_score_roundings;
  module.attr("exp2_and_sum_error") = exp2_and_sum_error;
  module.def("dropped_share", &dropped_share, py::arg("skip_tolerance"));
  module.def("measure_key_norms", &bind_measure_key_norms, py::arg("key"), py::arg("known"),
             py::arg("norms"), py::arg("centres"), py::arg("scales") = py::none());
}

}  // namespace ntk_alibi
