// Times the CUDA backend's kernel rows on this machine's GPU, beside the ceilings measured in the same run: a large
// copy and a large matrix product. Data is random; weights and KV memory rotate through sets larger than the L2 cache;
// times are medians of graph replays. Prints a table.
//
//   cuda_ops_bench [ceilings] [linear] [few_tokens] [integers] [attention] [decode] [prefill] [elementwise] [gated_f8]
//   (all where none is named)
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/cuda_random.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/cuda_support.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/linear_cublaslt.h"
#include "ops/cuda/linear_f8.h"
#include "ops/cuda/linear_strict.h"
#include "ops/cuda/weights.h"

namespace quire {
namespace {

constexpr int64_t kRotatedBytes = int64_t{512} << 20;  // ten times the L2 cache
constexpr size_t kRepeats = 21;

struct Timing {
  double median_us;
  double spread;  // (slowest - fastest) / median
};

// Runs work(i) for i in [0, num_calls), captured in one graph, and divides.
class Timer {
 public:
  Timer() {
    CUDA_CHECK(cudaStreamCreate(&stream_));
    CUDA_CHECK(cudaEventCreate(&begin_));
    CUDA_CHECK(cudaEventCreate(&end_));
  }
  cudaStream_t stream() const { return stream_; }

  Timing time(int num_calls, const std::function<void(int)>& work) {
    work(0);  // chooses kernels before the capture
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < num_calls; ++i) work(i);
    CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&replay, graph, 0));
    // The clocks need a while to rise, and what follows a large product starts with low ones.
    const auto warm_until = std::chrono::steady_clock::now() + std::chrono::milliseconds(40);
    std::vector<double> times;
    while (times.size() < kRepeats) {
      const bool is_warm = std::chrono::steady_clock::now() >= warm_until;
      CUDA_CHECK(cudaEventRecord(begin_, stream_));
      CUDA_CHECK(cudaGraphLaunch(replay, stream_));
      CUDA_CHECK(cudaEventRecord(end_, stream_));
      CUDA_CHECK(cudaEventSynchronize(end_));
      float ms = 0;
      CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
      if (is_warm) times.push_back(1000.0 * static_cast<double>(ms) / num_calls);
    }
    CUDA_CHECK(cudaGraphExecDestroy(replay));
    CUDA_CHECK(cudaGraphDestroy(graph));
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    return {median, (times.back() - times.front()) / median};
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

struct Ceilings {
  double copy_bytes_per_us = 4.28e6;
  double flops_per_us = 790e6;
};

struct Shape {
  const char* name;
  int64_t n;
  int64_t k;
};
constexpr Shape kShapes[] = {
    {"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate_up", 28672, 4096}, {"down", 4096, 14336}, {"head", 128256, 4096}};

class Bench {
 public:
  explicit Bench(CudaOps& ops) : ops_(ops), arena_(ops.allocate(64 << 20, "bench").value()) {}

  void ceilings() {
    constexpr int64_t kBytes = int64_t{4} << 30;
    const DeviceBuffer from = ops_.allocate(kBytes, "bench").value();
    const DeviceBuffer to = ops_.allocate(kBytes, "bench").value();
    fill_random(from.data(), kBytes / 2, 1, 1);
    const Timing read = timer_.time(1, [&](int) { read_memory(timer_.stream(), to.data(), from.data(), kBytes); });
    std::printf("ceiling read 4 GiB: %.0f us, %.3f TB/s, spread %.1f %%\n", read.median_us,
                1.0 * kBytes / read.median_us * 1e-6, 100 * read.spread);
    const Timing copy = timer_.time(1, [&](int) { copy_memory(timer_.stream(), to.data(), from.data(), kBytes); });
    ceilings_.copy_bytes_per_us = 2.0 * kBytes / copy.median_us;
    std::printf("ceiling copy 4 GiB: %.0f us, %.3f TB/s, spread %.1f %%\n", copy.median_us,
                ceilings_.copy_bytes_per_us * 1e-6, 100 * copy.spread);
    constexpr int64_t kSize = 8192;
    const cuda::MatmulShape shape{.num_tokens = kSize,
                                  .n = kSize,
                                  .k = kSize,
                                  .dtype = DType::kBF16,
                                  .y_dtype = DType::kBF16,
                                  .x_stride = kSize,
                                  .y_stride = kSize,
                                  .residual_stride = 0};
    char* data = static_cast<char*>(from.data());
    const cuda::MatmulArgs args{to.data(), data, data + 2 * kSize * kSize, nullptr};
    const Timing product = timer_.time(10, [&](int) { ops_.linear_library()->matmul(timer_.stream(), shape, args); });
    ceilings_.flops_per_us = 2.0 * kSize * kSize * kSize / product.median_us;
    std::printf("ceiling bf16 8192^3: %.0f us, %.0f TFLOP/s, spread %.1f %%\n", product.median_us,
                ceilings_.flops_per_us * 1e-6, 100 * product.spread);
  }

  // Every row for every shape of an 8B model, beside the fastest of cuBLASLt's heuristic answers.
  void linear() {
    std::printf("\n%-8s %-7s %6s %-20s %10s %9s %8s %7s\n", "linear", "format", "tokens", "row", "us", "TB/s",
                "TFLOP/s", "limit");
    for (const Shape& shape : kShapes) {
      for (const FormatId format :
           {FormatId::kBF16, FormatId::kQ4_0, FormatId::kQ4_K, FormatId::kQ8_0, FormatId::kQ6_K}) {
        if (shape.n > 100000 && format != FormatId::kBF16) continue;
        const std::vector<Weight> weights = make_weights(format, shape.n, shape.k);
        for (const int64_t num_tokens : {1, 8, 16, 32, 64, 128, 256, 2048}) {
          if (format != FormatId::kBF16 && num_tokens != 1 && num_tokens != 8 && num_tokens != 64) continue;
          linear_case(shape.name, weights, num_tokens);
        }
      }
      const std::vector<Weight> weights = make_f8_weights(shape.n, shape.k);
      for (const int64_t num_tokens : {1, 8, 16, 32, 64, 128, 256, 2048}) linear_case(shape.name, weights, num_tokens);
    }
  }

  // Integer weights, few tokens.
  void integers() {
    std::printf("\n%-8s %-7s %6s %-20s %10s %9s %8s %7s\n", "linear", "format", "tokens", "row", "us", "TB/s",
                "TFLOP/s", "limit");
    for (const Shape& shape : kShapes) {
      for (const FormatId format : {FormatId::kInt4G128, FormatId::kQ4_0, FormatId::kQ4_K, FormatId::kQ8_0}) {
        const std::vector<Weight> weights = make_weights(format, shape.n, shape.k);
        for (const int64_t num_tokens : {1, 2, 4, 8, 16, 32, 64, 128, 256})
          linear_case(shape.name, weights, num_tokens, false);
      }
    }
  }

  void int8() {
    std::printf("\n%-8s %-7s %6s %-20s %10s %9s %8s %7s\n", "linear", "format", "tokens", "row", "us", "TB/s",
                "TFLOP/s", "limit");
    for (const Shape& shape : kShapes) {
      const std::vector<Weight> weights = make_quantized(WeightQuantization::kI8, shape.n, shape.k);
      for (const int64_t num_tokens : {1, 8, 16, 32, 64, 128, 256, 2048, 8192}) {
        linear_case(shape.name, weights, num_tokens, false);
      }
    }
  }

  // What one order of sums for all numbers of tokens costs (linear_strict.h), beside the rows.
  void strict() {
    times_strict_ = true;
    std::printf("\n%-8s %-7s %6s %-20s %10s %9s %8s %7s\n", "linear", "format", "tokens", "row", "us", "TB/s",
                "TFLOP/s", "limit");
    for (const Shape& shape : kShapes) {
      const std::vector<Weight> all[] = {make_weights(FormatId::kBF16, shape.n, shape.k),
                                         make_f8_weights(shape.n, shape.k),
                                         make_weights(FormatId::kInt4G128, shape.n, shape.k)};
      for (const std::vector<Weight>& weights : all) {
        for (const int64_t num_tokens : {1, 8, 64, 128, 256, 2048}) {
          linear_case(shape.name, weights, num_tokens, false);
        }
      }
    }
    times_strict_ = false;
  }

  // The products of decoding alone: float and e4m3 weights, few tokens.
  void few_tokens() {
    std::printf("\n%-8s %-7s %6s %-20s %10s %9s %8s %7s\n", "linear", "format", "tokens", "row", "us", "TB/s",
                "TFLOP/s", "limit");
    for (const Shape& shape : kShapes) {
      for (const bool is_f8 : {false, true}) {
        const std::vector<Weight> weights =
            is_f8 ? make_f8_weights(shape.n, shape.k) : make_weights(FormatId::kBF16, shape.n, shape.k);
        for (const int64_t num_tokens : {1, 8, 16, 32, 64, 128, 256}) {
          linear_case(shape.name, weights, num_tokens, false);
        }
      }
    }
  }

  struct AttentionShape {
    const char* name;
    int num_sequences;
    int num_queries;
    int length;
    int head_dim = 128;
    bool is_causal = true;
  };

  void attention(bool takes_decode, bool takes_prefill) {
    const AttentionShape cases[] = {{"decode b256 x 1k", 256, 1, 1024},
                                    {"decode b64 x 4k", 64, 1, 4096},
                                    {"decode b64 x 1k", 64, 1, 1024},
                                    {"decode b16 x 4k", 16, 1, 4096},
                                    {"decode b8 x 1,088", 8, 1, 1088},
                                    {"decode b16 x 1,088", 16, 1, 1088},
                                    {"decode b32 x 1,088", 32, 1, 1088},
                                    {"decode b64 x 1,088", 64, 1, 1088},
                                    {"decode b64 x 1k d64", 64, 1, 1024, 64},
                                    {"decode b64 x 1k d96", 64, 1, 1024, 96},
                                    {"decode b64 x 1k d256", 64, 1, 1024, 256},
                                    {"decode b1 x 4k", 1, 1, 4096},
                                    {"decode b1 x 32k", 1, 1, 32768},
                                    {"decode b1 x 1k", 1, 1, 1024},
                                    {"decode b1 x 200", 1, 1, 200},
                                    {"decode b256 x 1k", 256, 1, 1024},
                                    {"prefill 8 x 2k", 8, 2048, 2048},
                                    {"prefill 1 x 2k", 1, 2048, 2048},
                                    {"prefill 1 x 8k", 1, 8192, 8192},
                                    {"prefill 1 x 16k", 1, 16384, 16384},
                                    {"full 8 x 2k", 8, 2048, 2048, 128, false},
                                    {"full 1 x 2k", 1, 2048, 2048, 128, false},
                                    {"full 1 x 4k", 1, 4096, 4096, 128, false},
                                    {"full 1 x 8k", 1, 8192, 8192, 128, false},
                                    {"full 1 x 16k", 1, 16384, 16384, 128, false},
                                    {"prefill 1 x 8k d64", 1, 8192, 8192, 64},
                                    {"prefill 1 x 8k d96", 1, 8192, 8192, 96},
                                    {"prefill 1 x 8k d256", 1, 8192, 8192, 256}};
    std::printf("\n%-20s %-24s %10s %9s %8s %7s\n", "attention 32/8 d128", "row", "us", "TB/s", "TFLOP/s", "limit");
    for (const AttentionShape& c : cases) {
      if (c.num_queries == 1 ? !takes_decode : !takes_prefill) continue;
      for (const KernelRow<cuda::AttentionCall>& row : cuda::attention_rows()) {
        if (row.name == "any_shape" && int64_t{c.num_sequences} * c.num_queries * c.length > (1 << 15)) continue;
        for (const DType dtype : {DType::kBF16, DType::kF8E4M3, DType::kI8}) {
          if (!c.is_causal && dtype != DType::kBF16) continue;
          attention_case(c, row, dtype);
        }
      }
      if (c.num_queries > 1) continue;
      for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
        for (const bool is_fused : {false, true}) rope_attention_case(c, is_fused, dtype);
      }
    }
  }

  void elementwise() {
    std::printf("\n%-28s %6s %10s %9s %7s\n", "elementwise 4096 bf16", "tokens", "us", "TB/s", "limit");
    OpContext context{arena_, timer_.stream()};
    for (const int64_t num_tokens : {1, 64, 2048}) {
      const DeviceBuffer x = random_buffer(num_tokens * 28672, 1);
      const DeviceBuffer delta = random_buffer(num_tokens * 28672, 1);
      const DeviceBuffer weight = random_buffer(4096 * 2, 1);
      const DeviceBuffer y = ops_.allocate(num_tokens * 28672 * 2, "bench").value();
      const TensorView x_view(x.data(), DType::kBF16, {num_tokens, 4096});
      const ConstTensorView delta_view(delta.data(), DType::kBF16, {num_tokens, 4096});
      const TensorView y_view(y.data(), DType::kBF16, {num_tokens, 4096});
      const ConstTensorView weight_view(weight.data(), DType::kF32, {4096});
      report_bytes("add_rms_norm", num_tokens, 4.0 * 2 * 4096 * num_tokens, timer_.time(20, [&](int) {
        ops_.add_rms_norm(context, y_view, x_view, delta_view, weight_view, 1e-5f);
      }));
      const ConstTensorView gate_up(delta.data(), DType::kBF16, {num_tokens, 28672});
      const TensorView activated(y.data(), DType::kBF16, {num_tokens, 14336});
      report_bytes("gated_activation 14336", num_tokens, 3.0 * 2 * 14336 * num_tokens, timer_.time(20, [&](int) {
        ops_.gated_activation(context, activated, gate_up.slice(1, 0, 14336), gate_up.slice(1, 14336, 28672),
                              Activation::kSilu);
      }));
    }
  }

  // The gated activation and the rounding of its rows to e4m3: one after the other, and in one kernel.
  void gated_f8() {
    std::printf("\n%-28s %6s %10s %9s %7s\n", "gated, to e4m3, 14336 bf16", "tokens", "us", "TB/s", "limit");
    OpContext context{arena_, timer_.stream()};
    for (const int64_t num_tokens : {128, 256, 2048, 8192}) {
      const DeviceBuffer both = random_buffer(num_tokens * 28672, 3);
      const DeviceBuffer y = ops_.allocate(num_tokens * 14336 * 2, "bench").value();
      const DeviceBuffer codes = ops_.allocate(num_tokens * 14336, "bench").value();
      const DeviceBuffer scales = ops_.allocate(num_tokens * 4, "bench").value();
      const ConstTensorView gate_up(both.data(), DType::kBF16, {num_tokens, 28672});
      const TensorView activated(y.data(), DType::kBF16, {num_tokens, 14336});
      uint8_t* const to = static_cast<uint8_t*>(codes.data());
      float* const to_scales = static_cast<float*>(scales.data());
      report_bytes("one after the other", num_tokens, 9.0 * 14336 * num_tokens, timer_.time(10, [&](int) {
        ops_.gated_activation(context, activated, gate_up.slice(1, 0, 14336), gate_up.slice(1, 14336, 28672),
                              Activation::kSilu);
        cuda::quantize_tokens_to_f8(
            timer_.stream(), {.codes = to, .scales = to_scales, .x = activated, .norm_weight = {}, .epsilon = 0});
      }));
      report_bytes("in one kernel", num_tokens, 7.0 * 14336 * num_tokens, timer_.time(10, [&](int) {
        cuda::gate_tokens_to_f8(
            timer_.stream(),
            {.y = activated, .both = gate_up, .gate = cuda::Gate::kSilu, .codes = to, .scales = to_scales});
      }));
    }
  }

 private:
  DeviceBuffer random_buffer(int64_t count, float scale) {
    DeviceBuffer buffer = ops_.allocate(count * 2, "bench").value();
    fill_random(buffer.data(), count, scale, ++seed_);
    return buffer;
  }

  std::vector<Weight> make_weights(FormatId format, int64_t n, int64_t k) {
    Weight shape;
    shape.format = format;
    shape.layout = Layout::kCudaPlanes;
    shape.n = n;
    shape.k = k;
    const cuda::DeviceWeight device = cuda::device_weight(shape);
    const bool is_float = shape.quant().is_float;
    const int64_t code_bytes = is_float ? n * k * 2 : device.panels_per_expert * device.panel_code_bytes;
    const int64_t scale_bytes = is_float ? 0 : device.panels_per_expert * device.panel_scale_bytes;
    std::vector<Weight> weights;
    const int count = static_cast<int>(std::max<int64_t>(2, kRotatedBytes / code_bytes + 1));
    for (int i = 0; i < count; ++i) {
      auto buffer = std::make_shared<DeviceBuffer>(ops_.allocate(code_bytes + scale_bytes, "bench").value());
      fill_random(buffer->data(), (code_bytes + scale_bytes) / 2, 0.02f, ++seed_);
      Weight weight = shape;
      const std::byte* data = static_cast<const std::byte*>(buffer->data());
      weight.parts[0] = {data, static_cast<size_t>(code_bytes)};
      weight.parts[1] = {data + code_bytes, static_cast<size_t>(scale_bytes)};
      weight.owner = buffer;
      weights.push_back(std::move(weight));
    }
    return weights;
  }

  std::vector<Weight> make_f8_weights(int64_t n, int64_t k) { return make_quantized(WeightQuantization::kF8, n, k); }
  std::vector<Weight> make_quantized(WeightQuantization quantization, int64_t n, int64_t k) {
    BackendOptions options;
    options.kind = BackendKind::kCuda;
    options.weight_quantization = quantization;
    const std::unique_ptr<CudaOps> ops = CudaOps::create(options).value();
    Weight shape;
    shape.format = FormatId::kBF16;
    shape.n = n;
    shape.k = k;
    std::vector<Weight> weights;
    const int count = static_cast<int>(std::max<int64_t>(2, kRotatedBytes / (n * k) + 1));
    for (int i = 0; i < count; ++i) weights.push_back(ops->make_random_weight(shape, ++seed_).value());
    return weights;
  }

  void report_linear(const char* name, const Weight& weight, int64_t num_tokens, const std::string& row,
                     const Timing& timing) {
    const double bytes =
        static_cast<double>(weight.num_bytes()) + 2.0 * static_cast<double>(num_tokens * (weight.n + weight.k));
    const double flops = 2.0 * static_cast<double>(num_tokens * weight.n * weight.k);
    const double floor_us = std::max(bytes / ceilings_.copy_bytes_per_us, flops / ceilings_.flops_per_us);
    std::printf("%-8s %-7s %6lld %-20s %10.2f %9.3f %8.1f %6.1f%%\n", name,
                weight.layout == Layout::kCudaF8 ? "f8" : std::string(weight.quant().name).c_str(),
                static_cast<long long>(num_tokens), row.c_str(), timing.median_us, bytes / timing.median_us * 1e-6,
                flops / timing.median_us * 1e-6, 100 * floor_us / timing.median_us);
  }

  void linear_case(const char* name, const std::vector<Weight>& weights, int64_t num_tokens, bool seeks_best = true) {
    const Weight& first = weights.front();
    const DeviceBuffer x = random_buffer(num_tokens * first.k, 1);
    const DeviceBuffer y = ops_.allocate(num_tokens * first.n * 2, "bench").value();
    const int num_calls = static_cast<int>(weights.size()) * (weights.size() < 8 ? 3 : 1);
    const auto call_of = [&](int i) -> cuda::LinearCall {
      return {.stream = timer_.stream(),
              .library = ops_.linear_library(),
              .compute = Compute::kAuto,
              .y = TensorView(y.data(), DType::kBF16, {num_tokens, first.n}),
              .x = ConstTensorView(x.data(), DType::kBF16, {num_tokens, first.k}),
              .weight = weights[static_cast<size_t>(i) % weights.size()]};
    };
    for (const KernelRow<cuda::LinearCall>& row : cuda::linear_rows()) {
      if (row.name == "any_shape" && num_tokens > 1) continue;
      if (row.name == "dequantize_cublaslt" && first.quant().is_float) continue;
      if (!row.accepts(call_of(0))) continue;
      report_linear(name, first, num_tokens, std::string(row.name),
                    timer_.time(num_calls, [&](int i) { row.launch(call_of(i)); }));
    }
    if (times_strict_) {
      report_linear(name, first, num_tokens, "(strict)", timer_.time(num_calls, [&](int i) {
        cuda::LinearCall call = call_of(i);
        call.is_strict = true;
        cuda::linear_strict(call);
      }));
    }
    if (!seeks_best || !first.quant().is_float || first.layout == Layout::kCudaF8) return;
    // The bar: the fastest of the heuristic's 16 answers.
    const cuda::MatmulShape shape{.num_tokens = num_tokens,
                                  .n = first.n,
                                  .k = first.k,
                                  .dtype = DType::kBF16,
                                  .y_dtype = DType::kBF16,
                                  .x_stride = first.k,
                                  .y_stride = first.n,
                                  .residual_stride = 0};
    Timing best{1e30, 0};
    for (const cublasLtMatmulAlgo_t& algorithm : ops_.linear_library()->algorithms(shape, 16, true)) {
      const Timing timing = timer_.time(num_calls, [&](int i) {
        ops_.linear_library()->run(
            timer_.stream(), shape,
            {y.data(), x.data(), weights[static_cast<size_t>(i) % weights.size()].parts[0].data(), nullptr}, algorithm);
      });
      if (timing.median_us < best.median_us) best = timing;
    }
    report_linear(name, first, num_tokens, "(best of cublaslt)", best);
  }

  void attention_case(const AttentionShape& shape, const KernelRow<cuda::AttentionCall>& row, DType cache_dtype) {
    attention_case(
        shape, row.name, cache_dtype, [&](const cuda::AttentionCall& call) { return row.accepts(call); },
        [&](const cuda::AttentionCall& call) { row.launch(call); });
  }

  // With the rotation and the page writes before, in one kernel or one after another.
  void rope_attention_case(const AttentionShape& shape, bool is_fused, DType cache_dtype) {
    const int64_t num_tokens = shape.num_sequences;
    constexpr int kRows = 32 + 2 * 8;
    const DeviceBuffer qkv = random_buffer(num_tokens * kRows * shape.head_dim, 1);
    const DeviceBuffer table = random_buffer(2 * num_tokens * shape.head_dim, 1);
    const TensorView rows(qkv.data(), DType::kBF16, {num_tokens, kRows, shape.head_dim});
    const Ops::QueryKeyValue inputs{
        .q = rows.slice(1, 0, 32),
        .k = rows.slice(1, 32, 40),
        .v = rows.slice(1, 40, kRows),
        .rope_table = ConstTensorView(table.data(), DType::kF32, {num_tokens, shape.head_dim})};
    OpContext context{arena_, timer_.stream()};
    attention_case(
        shape, is_fused ? "rope, write with it" : "rope, write before", cache_dtype,
        [](const cuda::AttentionCall&) { return true; },
        [&](const cuda::AttentionCall& call) {
          if (is_fused) {
            ops_.rope_and_attention(context, call.out, inputs, call.kv, call.batch, call.plan, call.params);
          } else {
            ops_.Ops::rope_and_attention(context, call.out, inputs, call.kv, call.batch, call.plan, call.params);
          }
        });
  }

  template <typename Accepts, typename Launch>
  void attention_case(const AttentionShape& shape, std::string_view row_name, DType cache_dtype, const Accepts& accepts,
                      const Launch& launch) {
    const auto& [name, num_sequences, num_queries, length, head_dim, is_causal] = shape;
    constexpr int kHeads = 32;
    constexpr int kKvHeads = 8;
    constexpr int kPageSize = 16;
    const int pages_per_sequence = (length + kPageSize - 1) / kPageSize;
    // K, V, and their scales where the cache holds codes: a bf16 each for a token and head.
    const int64_t code_bytes = int64_t{kKvHeads} * kPageSize * head_dim * dtype_bytes(cache_dtype);
    const int64_t scale_bytes = has_kv_scales(cache_dtype) ? int64_t{kKvHeads} * kPageSize * 2 : 0;
    const int64_t page_bytes = 2 * (code_bytes + scale_bytes);
    const int64_t step_bytes = int64_t{num_sequences} * pages_per_sequence * page_bytes;
    const int num_layers =
        static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(32, kRotatedBytes / step_bytes + 1)));
    const int num_pages = num_sequences * pages_per_sequence;
    // [page][layer][K or V][head][token][d]
    const DeviceBuffer pool = random_buffer(num_pages * page_bytes * num_layers / 2, 1);
    const int num_tokens = num_sequences * num_queries;
    const DeviceBuffer q = random_buffer(int64_t{num_tokens} * kHeads * head_dim, 1);
    const DeviceBuffer out = ops_.allocate(int64_t{num_tokens} * kHeads * head_dim * 2, "bench").value();
    std::vector<int32_t> starts(static_cast<size_t>(num_sequences) + 1);
    for (int s = 0; s <= num_sequences; ++s) starts[static_cast<size_t>(s)] = s * num_queries;
    const std::vector<int32_t> lengths(static_cast<size_t>(num_sequences), length);
    std::vector<int32_t> pages(static_cast<size_t>(num_pages));
    for (int i = 0; i < num_pages; ++i)
      pages[static_cast<size_t>(i)] = static_cast<int32_t>(int64_t{i} * 7919 % num_pages);
    // 7919 is prime: a permutation unless it divides num_pages, which is a power of two times small numbers here.
    const DeviceBuffer device_starts = upload(starts);
    const DeviceBuffer device_lengths = upload(lengths);
    const DeviceBuffer device_pages = upload(pages);
    std::vector<int64_t> slots;
    for (int s = 0; num_queries == 1 && s < num_sequences; ++s) {
      const int32_t page = pages[static_cast<size_t>((s + 1) * pages_per_sequence - 1)];
      slots.push_back(int64_t{page} * kPageSize + (length - 1) % kPageSize);
    }
    const DeviceBuffer device_slots = upload(slots);
    AttentionBatch batch;
    batch.num_sequences = num_sequences;
    batch.num_tokens = num_tokens;
    batch.query_starts = ConstTensorView(device_starts.data(), DType::kI32, {num_sequences + 1});
    batch.context_lengths = ConstTensorView(device_lengths.data(), DType::kI32, {num_sequences});
    batch.page_table = ConstTensorView(device_pages.data(), DType::kI32, {num_sequences, pages_per_sequence});
    batch.slots = ConstTensorView(device_slots.data(), DType::kI64, {static_cast<int64_t>(slots.size())});
    batch.host_query_starts = starts;
    batch.host_context_lengths = lengths;
    OpContext context{arena_, timer_.stream()};
    const std::unique_ptr<AttentionPlan> plan = ops_.create_attention_plan({.num_heads = kHeads,
                                                                            .num_kv_heads = kKvHeads,
                                                                            .head_dim = head_dim,
                                                                            .page_size = kPageSize,
                                                                            .window = 0,
                                                                            .kv_dtype = cache_dtype,
                                                                            .max_num_tokens = num_tokens,
                                                                            .max_num_sequences = num_sequences,
                                                                            .max_context = length})
                                                    .value();
    ops_.plan_attention(context, *plan, batch);
    CUDA_CHECK(cudaStreamSynchronize(timer_.stream()));
    const auto call_of = [&](int i) -> cuda::AttentionCall {
      PagedKv kv;
      char* base = static_cast<char*>(pool.data()) + i % num_layers * page_bytes;
      kv.k = base;
      kv.v = base + code_bytes;
      kv.k_scales = base + 2 * code_bytes;
      kv.v_scales = base + 2 * code_bytes + scale_bytes;
      kv.dtype = cache_dtype;
      kv.page_stride = page_bytes * num_layers / dtype_bytes(cache_dtype);
      kv.scale_page_stride = page_bytes * num_layers / 2;
      kv.head_stride = kPageSize * head_dim;
      kv.token_stride = head_dim;
      kv.num_pages = num_pages;
      kv.page_size = kPageSize;
      kv.num_kv_heads = kKvHeads;
      kv.head_dim = head_dim;
      return {.stream = timer_.stream(),
              .part = num_queries == 1 ? cuda::StepPart::kDecode : cuda::StepPart::kPrefill,
              .out = TensorView(out.data(), DType::kBF16, {num_tokens, kHeads, head_dim}),
              .q = ConstTensorView(q.data(), DType::kBF16, {num_tokens, kHeads, head_dim}),
              .kv = kv,
              .batch = batch,
              .plan = static_cast<const cuda::CudaAttentionPlan&>(*plan),
              .params = {.scale = 1.0f / std::sqrt(static_cast<float>(head_dim)), .is_causal = is_causal}};
    };
    if (!accepts(call_of(0))) return;
    const Timing timing = timer_.time(std::max(num_layers, 2), [&](int i) { launch(call_of(i)); });
    const std::string label = std::string(row_name) + (cache_dtype == DType::kI8 ? ", i8"
                                                       : scale_bytes > 0         ? ", f8"
                                                                                 : "");
    const double bytes = static_cast<double>(step_bytes) + 4.0 * num_tokens * kHeads * head_dim;
    double pairs = 0;
    for (int i = 0; i < num_queries; ++i) pairs += is_causal ? length - num_queries + i + 1 : length;
    const double flops = 4.0 * pairs * num_sequences * kHeads * head_dim;
    const double floor_us = std::max(bytes / ceilings_.copy_bytes_per_us, flops / ceilings_.flops_per_us);
    std::printf("%-20s %-24s %10.2f %9.3f %8.1f %6.1f%%\n", name, label.c_str(), timing.median_us,
                bytes / timing.median_us * 1e-6, flops / timing.median_us * 1e-6, 100 * floor_us / timing.median_us);
  }

  void report_bytes(const char* name, int64_t num_tokens, double bytes, const Timing& timing) {
    std::printf("%-28s %6lld %10.2f %9.3f %6.1f%%\n", name, static_cast<long long>(num_tokens), timing.median_us,
                bytes / timing.median_us * 1e-6, 100 * bytes / ceilings_.copy_bytes_per_us / timing.median_us);
  }

  template <typename V>
  DeviceBuffer upload(const std::vector<V>& values) {
    const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(V));
    DeviceBuffer buffer = ops_.allocate(bytes, "bench").value();
    CUDA_CHECK(cudaMemcpy(buffer.data(), values.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
    return buffer;
  }

  CudaOps& ops_;
  Arena arena_;
  Timer timer_;
  Ceilings ceilings_;
  uint32_t seed_ = 0;
  bool times_strict_ = false;
};

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::BackendOptions options;
  options.kind = quire::BackendKind::kCuda;
  auto ops = quire::CudaOps::create(options);
  if (!ops.is_ok()) {
    std::fprintf(stderr, "%s\n", ops.status().message().c_str());
    return 1;
  }
  std::printf("%s\n", ops.value()->description().c_str());
  quire::Bench bench(*ops.value());
  const auto wants = [&](const std::string& name) {
    if (argc == 1) return true;
    return std::find(argv + 1, argv + argc, name) != argv + argc;
  };
  if (wants("ceilings")) bench.ceilings();
  if (wants("attention") || wants("decode") || wants("prefill")) {
    bench.attention(wants("attention") || wants("decode"), wants("attention") || wants("prefill"));
  }
  if (wants("elementwise")) bench.elementwise();
  if (wants("gated_f8")) bench.gated_f8();
  if (argc > 1 && wants("few_tokens")) bench.few_tokens();
  if (argc > 1 && wants("integers")) bench.integers();
  if (argc > 1 && wants("int8")) bench.int8();
  if (argc > 1 && wants("strict")) bench.strict();
  if (wants("linear")) bench.linear();
  return 0;
}
