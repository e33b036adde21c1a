// A step of few tokens through a stack of decoder layers of Llama-3.1-8B's shape on the GPU. Times of graphs' replays,
// a layer.
//   cuda_decoder_bench [bf16|fp8|int4_g128|q4_k|...] [layers] [lengths...]
//     of one token: all at once, op by op, and op by op with rotation and page writes apart from attention
//   cuda_decoder_bench [strict] sequences NUMBER [format] [layers] [lengths...]
//     of a token each of so many sequences, or as under --sameness strict: op by op, the same without one of the ops,
//     and each op by itself
#include <cstdio>
#include <cstring>
#include <string>

#include "ops/attention_parts.h"
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

std::unique_ptr<Gpu> create_gpu(const std::string& format, bool has_step, bool is_strict) {
  return Gpu::create({{"decoder_step", has_step ? "on" : "off"}}, Compute::kAuto,
                     format == "fp8" ? WeightQuantization::kF8 : WeightQuantization::kNone, is_strict);
}

void run(const std::string& format, int num_layers, int length) {
  const std::unique_ptr<Gpu> gpu = create_gpu(format, /*has_step=*/true, /*is_strict=*/false);
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
  Sequences(Gpu& gpu, TestRandom& random, const StackCase& c, int num_sequences)
      : case_(c),
        n_(num_sequences),
        layers_(gpu, random, c),
        x_(gpu, gpu.ops().residual_dtype(c.dtype), n_, c.hidden),
        table_(gpu, DType::kF32, n_, c.head_dim) {
    x_.fill(random.normals(n_ * c.hidden));
    table_.fill(random.normals(n_ * c.head_dim));
    // All pages hold the same.
    const int pages_each = (c.length + c.page_size - 1) / c.page_size;
    const int num_pages = n_ * pages_each;
    const int64_t page_bytes = c.page_elements() * dtype_bytes(c.dtype);
    pages_ = gpu.ops().allocate(num_pages * page_bytes, "bench").value();
    DeviceMatrix page(gpu, c.dtype, 1, c.page_elements());
    page.fill(random.normals(c.page_elements()));
    for (int64_t i = 0; i < num_pages; ++i) {
      EXPECT_EQ(cudaMemcpy(static_cast<char*>(pages_.data()) + i * page_bytes, page.view().raw_data(),
                           static_cast<size_t>(page_bytes), cudaMemcpyDeviceToDevice),
                cudaSuccess);
    }
    std::vector<int32_t> order(static_cast<size_t>(num_pages));
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
    host_is_prompt_.assign(static_cast<size_t>(n_), kDrawn);
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
              .host_context_lengths = host_lengths_,
              .host_is_prompt = host_is_prompt_};
    plan_ = layers_.make_plan(batch_);
    kv_ = layers_.layer_kv(pages_.data(), num_pages);
  }

  // The ops of all layers; those that are left out leave their outputs as they are.
  void run(unsigned wanted) {
    layers_.run({.x = x_.view(), .rope_table = table_.view(), .kv = kv_, .batch = batch_, .plan = *plan_}, wanted);
  }

  // Numbers that stay numbers whatever is left out.
  void reset() {
    TestRandom random(6);
    x_.fill(random.normals(n_ * case_.hidden));
  }

 private:
  StackCase case_;
  int n_;
  StackLayers layers_;
  DeviceMatrix x_;
  DeviceMatrix table_;
  DeviceBuffer pages_;
  std::vector<PagedKv> kv_;
  DeviceBuffer page_table_;
  DeviceBuffer slots_;
  DeviceBuffer query_starts_;
  DeviceBuffer lengths_;
  std::vector<int32_t> host_query_starts_;
  std::vector<int32_t> host_lengths_;
  std::vector<uint8_t> host_is_prompt_;
  AttentionBatch batch_;
  std::unique_ptr<AttentionPlan> plan_;
};

void run_sequences(int num_sequences, bool is_strict, const std::string& format, int num_layers, int length) {
  const std::unique_ptr<Gpu> gpu = create_gpu(format, /*has_step=*/false, is_strict);
  if (gpu == nullptr) return;
  TestRandom random(5);
  Sequences sequences(*gpu, random, stack_case(format, num_layers, length), num_sequences);
  const auto time = [&](unsigned ops) {
    sequences.reset();
    return static_cast<double>(time_graph(*gpu, [&] { sequences.run(ops); })) / num_layers;
  };
  constexpr unsigned kAll = StackLayers::kAllOps;
  constexpr struct {
    const char* name;
    unsigned op;
  } kOps[] = {{"qkv", StackLayers::kQkv},
              {"attention", StackLayers::kAttention},
              {"output", StackLayers::kOutput},
              {"gate_up", StackLayers::kGateUp},
              {"down", StackLayers::kDown}};
  const double all = time(kAll);
  std::printf("%-10s %s%3d sequences, keys %6d: %7.2f us a layer, all but attention %7.2f; an op in the chain (alone)",
              format.c_str(), is_strict ? "strict " : "", num_sequences, length, all,
              time(kAll & ~unsigned{StackLayers::kAttention}));
  for (const auto& op : kOps) std::printf(" %s %5.2f (%5.2f)", op.name, all - time(kAll & ~op.op), time(op.op));
  std::printf("\n");
}

int run_all(int argc, char** argv) {
  const bool is_strict = argc > 1 && std::strcmp(argv[1], "strict") == 0;
  if (is_strict) {
    --argc;
    ++argv;
  }
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
      run_sequences(num_sequences, is_strict, format, num_layers, length);
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
