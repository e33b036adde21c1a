// A step of few tokens through a stack of decoder layers of Llama-3.1-8B's shape on the GPU. Times of graphs' replays,
// a layer.
//   cuda_decoder_bench [bf16|fp8|int4_g128|q4_k|...] [layers] [lengths...]
//     of one token: all at once, op by op, and op by op with rotation and page writes apart from attention
//   cuda_decoder_bench sequences NUMBER [format] [layers] [lengths...]
//     of a token each of so many sequences: op by op, the same without one of the ops, and each op by itself
#include <cstdio>
#include <cstring>
#include <string>

#include "ops/tests/cuda_decoder_stack.h"

namespace quire {
namespace {

// Median of the replays, us.
template <typename Run>
float time_graph(Gpu& gpu, const Run& run) {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  gpu.context().stream = stream;
  run();  // what must be measured first
  gpu.synchronize();
  gpu.ops().begin_recording(gpu.context());
  run();
  const std::unique_ptr<Ops::Recording> recording = gpu.ops().end_recording(gpu.context());
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int i = 0; i < 60; ++i) {
    cudaEventRecord(begin, stream);
    gpu.ops().replay(gpu.context(), *recording);
    cudaEventRecord(end, stream);
    cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i >= 20) times.push_back(ms * 1000);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  gpu.context().stream = nullptr;
  cudaStreamDestroy(stream);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

StackCase stack_case(const std::string& format, int num_layers, int length) {
  StackCase c{.num_layers = num_layers,
              .hidden = 4096,
              .intermediate = 14336,
              .num_heads = 32,
              .num_kv_heads = 8,
              .head_dim = 128,
              .length = length};
  for (size_t id = 0; id < std::size(kQuantFormats); ++id) {
    if (format == quant_format(static_cast<FormatId>(id)).name) c.format = static_cast<FormatId>(id);
  }
  return c;
}

std::unique_ptr<Gpu> create_gpu(const std::string& format) {
  return Gpu::create({{"decoder_step", "on"}}, Compute::kAuto,
                     format == "fp8" ? WeightQuantization::kF8 : WeightQuantization::kNone);
}

void run(const std::string& format, int num_layers, int length) {
  const std::unique_ptr<Gpu> gpu = create_gpu(format);
  if (gpu == nullptr) return;
  TestRandom random(5);
  const StackCase c = stack_case(format, num_layers, length);
  CudaDecoderStack stack(*gpu, random, c);
  DeviceMatrix x(*gpu, c.dtype, 1, c.hidden);
  DeviceMatrix y(*gpu, c.dtype, 1, c.hidden);
  x.fill(random.normals(c.hidden));
  DeviceMatrix pages = stack.make_pages();
  const bool is_taken = stack.run_step(y.view(), x.view(), pages);
  gpu->synchronize();
  const float step = is_taken ? time_graph(*gpu, [&] { (void)stack.run_step(y.view(), x.view(), pages); }) : 0;
  const float chain = time_graph(*gpu, [&] { stack.run_chain(x.view(), pages); });
  const float apart = time_graph(*gpu, [&] { stack.run_chain(x.view(), pages, false); });
  std::printf("%-10s keys %6d: at once %7.2f us a layer, op by op %7.2f, rotation apart %7.2f\n", format.c_str(),
              length, static_cast<double>(step) / num_layers, static_cast<double>(chain) / num_layers,
              static_cast<double>(apart) / num_layers);
}

// Layers over several sequences of one length, each with pages of its own.
class Sequences {
 public:
  enum Op : unsigned { kQkv = 1, kAttention = 2, kOutput = 4, kGateUp = 8, kDown = 16, kAll = 31 };

  Sequences(Gpu& gpu, const StackCase& c, int num_sequences)
      : gpu_(gpu),
        case_(c),
        n_(num_sequences),
        x_(gpu, c.dtype, n_, c.hidden),
        table_(gpu, DType::kF32, n_, c.head_dim) {
    TestRandom random(5);
    for (int i = 0; i < c.num_layers; ++i) {
      StepLayer layer;
      layer.attention_norm = norm(random);
      layer.qkv = weight(c.query_size() + 2 * c.kv_size(), c.hidden, 4 * i);
      layer.output = weight(c.hidden, c.query_size(), 4 * i + 1);
      layer.mlp_norm = norm(random);
      layer.gate_up = weight(2 * c.intermediate, c.hidden, 4 * i + 2);
      layer.down = weight(c.hidden, c.intermediate, 4 * i + 3);
      layers_.push_back(layer);
    }
    x_.fill(random.normals(n_ * c.hidden));
    table_.fill(random.normals(n_ * c.head_dim));
    // All pages hold the same.
    const int pages_each = (c.length + c.page_size - 1) / c.page_size;
    num_pages_ = n_ * pages_each;
    page_elements_ = 2 * c.kv_size() * c.page_size * c.num_layers;
    const int64_t page_bytes = page_elements_ * dtype_bytes(c.dtype);
    pages_ = gpu.ops().allocate(num_pages_ * page_bytes, "bench").value();
    DeviceMatrix page(gpu, c.dtype, 1, page_elements_);
    page.fill(random.normals(page_elements_));
    for (int64_t i = 0; i < num_pages_; ++i) {
      EXPECT_EQ(cudaMemcpy(static_cast<char*>(pages_.data()) + i * page_bytes, page.view().raw_data(),
                           static_cast<size_t>(page_bytes), cudaMemcpyDeviceToDevice),
                cudaSuccess);
    }
    std::vector<int32_t> order(static_cast<size_t>(num_pages_));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    std::vector<int64_t> slots;
    for (int s = 0; s < n_; ++s) {
      const int32_t last = order[static_cast<size_t>((s + 1) * pages_each - 1)];
      slots.push_back(int64_t{last} * c.page_size + (c.length - 1) % c.page_size);
    }
    host_query_starts_.resize(static_cast<size_t>(n_) + 1);
    std::iota(host_query_starts_.begin(), host_query_starts_.end(), 0);
    host_lengths_.assign(static_cast<size_t>(n_), c.length);
    page_table_ = gpu.upload(order);
    slots_ = gpu.upload(slots);
    query_starts_ = gpu.upload(host_query_starts_);
    lengths_ = gpu.upload(host_lengths_);
    batch_ = {.num_sequences = n_,
              .num_tokens = n_,
              .query_starts = ConstTensorView(query_starts_.data(), DType::kI32, {n_ + 1}),
              .context_lengths = ConstTensorView(lengths_.data(), DType::kI32, {n_}),
              .page_table = ConstTensorView(page_table_.data(), DType::kI32, {n_, pages_each}),
              .slots = ConstTensorView(slots_.data(), DType::kI64, {n_}),
              .host_query_starts = host_query_starts_,
              .host_context_lengths = host_lengths_};
    plan_ = gpu.ops()
                .create_attention_plan({.num_heads = c.num_heads,
                                        .num_kv_heads = c.num_kv_heads,
                                        .head_dim = static_cast<int>(c.head_dim),
                                        .page_size = c.page_size,
                                        .window = 0,
                                        .kv_dtype = c.dtype,
                                        .max_num_tokens = n_,
                                        .max_num_sequences = n_,
                                        .max_context = c.length})
                .value();
    gpu.ops().plan_attention(gpu.context(), *plan_, batch_);
    params_.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  }

  // The ops of all layers; those that are left out leave their outputs as they are.
  void run(unsigned ops_wanted) {
    const StackCase& c = case_;
    CudaOps& ops = gpu_.ops();
    OpContext& context = gpu_.context();
    const ArenaScope scope(context.scratch);
    const TensorView x = x_.view();
    const TensorView qkv = context.scratch.take(c.dtype, {n_, c.query_size() + 2 * c.kv_size()});
    const TensorView mixed = context.scratch.take(c.dtype, {n_, c.query_size()});
    const TensorView gated = context.scratch.take(c.dtype, {n_, c.intermediate});
    const int64_t k_begin = c.query_size();
    const int64_t v_begin = k_begin + c.kv_size();
    const Ops::QueryKeyValue inputs{.q = qkv.slice(1, 0, k_begin).split_last_dimension(c.head_dim),
                                    .k = qkv.slice(1, k_begin, v_begin).split_last_dimension(c.head_dim),
                                    .v = qkv.slice(1, v_begin, v_begin + c.kv_size()).split_last_dimension(c.head_dim),
                                    .rope_table = table_.view(),
                                    .rope_style = c.rope_style};
    for (int i = 0; i < c.num_layers; ++i) {
      const StepLayer& layer = layers_[static_cast<size_t>(i)];
      if ((ops_wanted & kQkv) != 0) ops.norm_linear(context, qkv, x, {layer.attention_norm, 1e-5f}, layer.qkv, {});
      if ((ops_wanted & kAttention) != 0) {
        ops.rope_and_attention(context, mixed.split_last_dimension(c.head_dim), inputs, layer_kv(i), batch_, *plan_,
                               params_);
      }
      if ((ops_wanted & kOutput) != 0) ops.linear(context, x, mixed, layer.output, {.bias = {}, .residual = x});
      if ((ops_wanted & kGateUp) != 0) {
        ops.norm_gated_linear(context, gated, x, {layer.mlp_norm, 1e-5f}, layer.gate_up, {}, c.activation);
      }
      if ((ops_wanted & kDown) != 0) ops.linear(context, x, gated, layer.down, {.bias = {}, .residual = x});
    }
  }

  // Numbers that stay numbers whatever is left out.
  void reset() {
    TestRandom random(6);
    x_.fill(random.normals(n_ * case_.hidden));
  }

 private:
  Weight weight(int64_t n, int64_t k, int seed) {
    Weight shape;
    shape.format = case_.format;
    shape.n = n;
    shape.k = k;
    return gpu_.ops().make_random_weight(shape, static_cast<uint64_t>(seed + 1)).value();
  }
  ConstTensorView norm(TestRandom& random) {
    norms_.push_back(gpu_.upload(random.normals(case_.hidden, 0.2f)));
    return ConstTensorView(norms_.back().data(), DType::kF32, {case_.hidden});
  }
  PagedKv layer_kv(int layer) const {
    const StackCase& c = case_;
    PagedKv kv;
    kv.k = static_cast<char*>(pages_.data()) + 2 * layer * c.kv_size() * c.page_size * dtype_bytes(c.dtype);
    kv.v = static_cast<char*>(kv.k) + c.kv_size() * c.page_size * dtype_bytes(c.dtype);
    kv.dtype = c.dtype;
    kv.page_stride = page_elements_;
    kv.head_stride = c.page_size * c.head_dim;
    kv.token_stride = c.head_dim;
    kv.num_pages = num_pages_;
    kv.page_size = c.page_size;
    kv.num_kv_heads = c.num_kv_heads;
    kv.head_dim = static_cast<int>(c.head_dim);
    return kv;
  }

  Gpu& gpu_;
  StackCase case_;
  int n_;
  DeviceMatrix x_;
  DeviceMatrix table_;
  std::vector<StepLayer> layers_;
  std::vector<DeviceBuffer> norms_;
  int num_pages_ = 0;
  int64_t page_elements_ = 0;
  DeviceBuffer pages_;
  DeviceBuffer page_table_;
  DeviceBuffer slots_;
  DeviceBuffer query_starts_;
  DeviceBuffer lengths_;
  std::vector<int32_t> host_query_starts_;
  std::vector<int32_t> host_lengths_;
  AttentionBatch batch_;
  AttentionParams params_;
  std::unique_ptr<AttentionPlan> plan_;
};

void run_sequences(int num_sequences, const std::string& format, int num_layers, int length) {
  const std::unique_ptr<Gpu> gpu = create_gpu(format);
  if (gpu == nullptr) return;
  Sequences sequences(*gpu, stack_case(format, num_layers, length), num_sequences);
  const auto time = [&](unsigned ops) {
    sequences.reset();
    return static_cast<double>(time_graph(*gpu, [&] { sequences.run(ops); })) / num_layers;
  };
  constexpr unsigned kAll = Sequences::kAll;
  constexpr struct {
    const char* name;
    unsigned op;
  } kOps[] = {{"qkv", Sequences::kQkv},
              {"attention", Sequences::kAttention},
              {"output", Sequences::kOutput},
              {"gate_up", Sequences::kGateUp},
              {"down", Sequences::kDown}};
  const double all = time(kAll);
  std::printf("%-10s %3d sequences, keys %6d: %7.2f us a layer, all but attention %7.2f; an op in the chain (alone)",
              format.c_str(), num_sequences, length, all, time(kAll & ~unsigned{Sequences::kAttention}));
  for (const auto& op : kOps) std::printf(" %s %5.2f (%5.2f)", op.name, all - time(kAll & ~op.op), time(op.op));
  std::printf("\n");
}

int run_all(int argc, char** argv) {
  const bool has_sequences = argc > 2 && std::strcmp(argv[1], "sequences") == 0;
  const int num_sequences = has_sequences ? std::stoi(argv[2]) : 1;
  const int first = has_sequences ? 3 : 1;
  const std::string format = argc > first ? argv[first] : "bf16";
  const int num_layers = argc > first + 1 ? std::stoi(argv[first + 1]) : 8;
  std::vector<int> lengths;
  for (int i = first + 2; i < argc; ++i) lengths.push_back(std::stoi(argv[i]));
  if (lengths.empty()) lengths.push_back(has_sequences ? 1024 : 200);
  for (const int length : lengths) {
    if (has_sequences) {
      run_sequences(num_sequences, format, num_layers, length);
    } else {
      run(format, num_layers, length);
    }
  }
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::run_all(argc, argv);
}
