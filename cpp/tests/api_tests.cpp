// The public interface: equal to the core, and wrong arguments are refused.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "call.h"
#include "checks.h"
#include "ntk_alibi/attention.h"

using namespace ntk_alibi;

namespace {

// The arguments of a call of the core, with results of their own.
struct Arguments {
  std::vector<float> output;
  std::vector<double> logsumexp;
  std::vector<float> slopes{0.5f, 0.03f, 0.002f};
  AttentionArguments arguments;

  explicit Arguments(const Call& call)
      : output(call.output.size()), logsumexp(call.logsumexp.size()) {
    const AttentionProblem& p = call.problem;
    arguments.query_heads = arguments.key_heads = Call::heads;
    arguments.query_length = p.query_length;
    arguments.key_length = p.key_length;
    arguments.head_dim = Call::dim;
    arguments.query = arguments.key = arguments.value =
        contiguous<const void>(call.inputs.data(), Call::heads, p.key_length, Call::dim);
    arguments.output = contiguous<void>(output.data(), Call::heads, p.query_length, Call::dim);
    arguments.logsumexp = logsumexp.data();
    arguments.scale = p.scale;
    arguments.slopes = slopes.data();
    arguments.key_padding_mask = p.key_mask;
  }
};

// Returns the message of the error of a call whose arguments were changed, or "" without an error.
std::string error_of(const std::function<void(AttentionArguments&)>& change) {
  const Call call(70, 300, false);
  Arguments with(call);
  change(with.arguments);
  try {
    attention(with.arguments);
  } catch (const std::logic_error& error) {  // invalid_argument or domain_error
    return error.what();
  }
  return "";
}

}  // namespace

void test_public_interface() {
  for (const bool masked : {false, true}) {
    Call call(70, 300, masked);
    attention(call.problem);
    Arguments with(call);
    attention(with.arguments);
    CHECK(with.output == call.output && with.logsumexp == call.logsumexp);
  }
  // A mask that shows what a causal rule does, shared by batch and heads, keys from the end.
  {
    Call call(70, 300, true);
    attention(call.problem);
    std::vector<std::uint8_t> bytes(70 * 300);
    for (std::int64_t i = 0; i < 70; ++i)
      for (std::int64_t k = 0; k < 300; ++k)
        bytes[i * 300 + 299 - k] = static_cast<std::uint8_t>(k <= 230 + i ? 2 + k % 7 : 0);
    Arguments with(call);
    with.arguments.mask = {bytes.data() + 299, 0, 0, 300, -1};
    attention(with.arguments);
    CHECK(with.output == call.output && with.logsumexp == call.logsumexp);
    std::fill(bytes.begin(), bytes.end(), std::uint8_t{0});
    attention(with.arguments);
    for (std::size_t i = 0; i < with.output.size(); ++i) CHECK(with.output[i] == 0.0f);
    for (const double log : with.logsumexp) CHECK(std::isinf(log) && log < 0.0);
  }
  // One meaning of skip_tolerance, which leaves out more the greater it is.
  std::vector<std::int64_t> weighed;
  for (const auto tolerance : {std::optional<double>(), std::optional(0.0), std::optional(0.25)}) {
    Call call(70, 1500, false);
    call.problem.skip_tolerance = tolerance;
    attention(call.problem);
    Arguments with(call);
    with.arguments.skip_tolerance = tolerance;
    attention(with.arguments);
    CHECK(with.output == call.output && with.logsumexp == call.logsumexp);
    weighed.push_back(call.counts[2 * kinds_of_counts - 1]);  // of the second head
  }
  CHECK(weighed[0] > weighed[1] && weighed[1] > weighed[2]);
  CHECK(alibi_slopes(4) == (std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f}));
  CHECK(alibi_slopes(3) == (std::vector<float>{0.0625f, 0.00390625f, 0.25f}));
  AttentionArguments nothing;
  nothing.query_length = nothing.key_length = 0;
  nothing.head_dim = 1;
  attention(nothing);  // no queries and no keys
  nothing.batch = nothing.query_heads = nothing.key_heads = int32_max;
  attention(nothing);
}

void test_public_interface_refuses() {
  const auto mentions = [](const std::string& message, const char* words) {
    return message.find(words) != std::string::npos;
  };
  using Arguments = AttentionArguments;
  static const std::uint8_t some_bytes[300] = {1};
  CHECK(error_of([](Arguments&) {}).empty());
  CHECK(error_of([](Arguments& a) { a.head_dim = 257; }) == "head_dim must be 1 to 256, got 257");
  CHECK(mentions(error_of([](Arguments& a) { a.batch = -1; }), "batch must be 0 to"));
  CHECK(error_of([](Arguments& a) { a.key_heads = 2; }) ==
        "query_heads must be a multiple of key_heads 2, got 3");
  CHECK(mentions(error_of([](Arguments& a) { a.key_heads = 0; }), "key_heads must be 1 to"));
  CHECK(error_of([](Arguments& a) { a.query_length = 301; }) ==
        "query_length must be at most key_length 300, got 301");
  CHECK(mentions(error_of([](Arguments& a) { a.skip_tolerance = 1.0; }), "skip_tolerance must"));
  CHECK(mentions(error_of([](Arguments& a) { a.skip_tolerance = std::nan(""); }), "got nan"));
  CHECK(mentions(error_of([](Arguments& a) { a.skip_tolerance = -0.1; }), "skip_tolerance must"));
  CHECK(mentions(error_of([](Arguments& a) { a.scale = INFINITY; }), "scale must be"));
  CHECK(mentions(error_of([](Arguments& a) { a.scale = NAN; }), "scale must be"));
  CHECK(mentions(error_of([](Arguments& a) { a.query_heads = 0; }), "query_heads must be 1 to"));
  CHECK(mentions(error_of([](Arguments& a) { a.query_heads = -3; }), "query_heads must be 1 to"));
  CHECK(mentions(error_of([](Arguments& a) { a.head_dim = 0; }), "head_dim must be 1 to 256"));
  CHECK(mentions(error_of([](Arguments& a) { a.query_length = -1; }), "query_length must be 0 to"));
  CHECK(mentions(error_of([](Arguments& a) { a.key_length = -1; }), "key_length must be 0 to"));
  CHECK(mentions(error_of([](Arguments& a) { a.key_length = INT64_MAX; }), "key_length must be"));
  CHECK(mentions(error_of([](Arguments& a) { a.window = INT64_MIN; }), "window must be 1 to"));
  CHECK(error_of([](Arguments& a) {
          a.batch = a.query_heads = a.key_heads = a.key_length = int32_max;
        }) ==
        "batch x query_heads x key_length x head_dim must be at most 2^60, got 2147483647 x "
        "2147483647 x 2147483647 x 20");
  CHECK(mentions(error_of([](Arguments& a) { a.window = 0; }), "window must be 1 to"));
  CHECK(mentions(error_of([](Arguments& a) { a.sink = -1; }), "sink must be 0 to"));
  CHECK(error_of([](Arguments& a) { a.sink = 4; }) ==
        "sink must be 0 without window or causal_block, got 4");
  const std::string overflow = error_of([](Arguments& a) { a.scale = 1e38f; });
  CHECK(mentions(overflow, "within float32's range") && !mentions(overflow, "dropout"));
  CHECK(mentions(error_of([](Arguments& a) { a.mask = {some_bytes, 0, 0, 0, INT64_MAX}; }),
                 "mask's strides must be"));
  CHECK(mentions(error_of([](Arguments& a) { a.causal_block = 4, a.causal = false; }),
                 "causal must be true with causal_block"));
  CHECK(mentions(error_of([](Arguments& a) { a.value.data = nullptr; }), "value must have data"));
  CHECK(mentions(error_of([](Arguments& a) { a.output.data = nullptr; }), "output must have data"));
  CHECK(mentions(error_of([](Arguments& a) { a.query.data = nullptr; }), "query must have data"));
  CHECK(mentions(error_of([](Arguments& a) { a.key.data = nullptr; }), "key must have data"));
  CHECK(error_of([](Arguments& a) { a.output.data = const_cast<void*>(a.query.data); }) ==
        "output must not share memory with an input, got an input's");
  CHECK(error_of([](Arguments& a) { a.output.head_stride = 0; }) ==
        "output's strides must keep rows apart, got 4200, 0 and 20 (batch, head and row)");
  CHECK(mentions(error_of([](Arguments& a) { a.output.row_stride = 19; }), "keep rows apart"));
  CHECK(mentions(error_of([](Arguments& a) { a.key.row_stride = -INT64_MAX; }),
                 "key's strides must"));
  CHECK(mentions(error_of([](Arguments& a) { a.value.row_stride = std::int64_t{1} << 59; }),
                 "value's strides must span at most 2^60 elements"));
  // What was forgotten: lengths, strides of axes of more than one, which may be 0.
  CHECK(error_of([](Arguments& a) { a.query_length = Arguments().query_length; }) ==
        "query_length must be given");
  CHECK(error_of([](Arguments& a) { a.key_length = Arguments().key_length; }) ==
        "key_length must be given");
  CHECK(error_of([](Arguments& a) { a.key = {a.key.data}; }) ==
        "key's head_stride must be given for an axis of 3");
  CHECK(error_of([](Arguments& a) { a.query = {a.query.data, 0, 300 * 20}; }) ==
        "query's row_stride must be given for an axis of 70");
  CHECK(error_of([](Arguments& a) { a.output.head_stride = not_given; }) ==
        "output's head_stride must be given for an axis of 3");
  CHECK(error_of([](Arguments& a) { a.value = {a.value.data, 0, 0, 20}; }).empty());
  CHECK(error_of([](Arguments& a) { a.query.batch_stride = not_given; }).empty());
  CHECK(error_of([](Arguments& a) { a.mask.data = some_bytes; }) ==
        "mask's head_stride must be given for an axis of 3");
  CHECK(error_of([](Arguments& a) { a.mask = {some_bytes, 0, 0}; }) ==
        "mask's query_stride must be given for an axis of 70");
  CHECK(error_of([](Arguments& a) { a.mask = {some_bytes, 0, 0, 0}; }).empty());
  // Rows of tokens, each with all heads, and rows from the end.
  CHECK(
      error_of([](Arguments& a) { a.output.head_stride = 20, a.output.row_stride = 60; }).empty());
  CHECK(error_of([](Arguments& a) {
          a.output.data = static_cast<float*>(a.output.data) + 69 * 20;
          a.output.row_stride = -20;
        }).empty());
  const auto message_of = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const std::logic_error& error) {  // invalid_argument or domain_error
      return error.what();
    }
    return "";
  };
  CHECK(message_of([] { alibi_slopes(0); }) == "num_heads must be 1 to 1048576, got 0");
  CHECK(mentions(message_of([] { alibi_slopes(INT64_MAX); }), "num_heads must be 1 to 1048576"));
  CHECK(mentions(message_of([] { contiguous<void>(nullptr, -1, 2, 3); }), "heads must be 0 to"));
  CHECK(mentions(message_of([] { contiguous<void>(nullptr, int32_max, int32_max, 64); }),
                 "heads x rows x head_dim must be at most 2^60 elements, got 2147483647 x"));
  static const float unordered[] = {0.5f, 0.2f, NAN};
  CHECK(error_of([](Arguments& a) { a.slopes = unordered; }) ==
        "slopes[2] must be finite, got nan");
  static const float slopes[] = {0.5f, std::numeric_limits<float>::infinity(), 0.1f};
  CHECK(mentions(error_of([](Arguments& a) { a.slopes = slopes; }), "slopes[1] must be finite"));
  CHECK(mentions(error_of([](Arguments& a) { a.element_type = static_cast<ElementType>(7); }),
                 "element_type must be"));
}
