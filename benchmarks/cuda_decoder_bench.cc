// A step of one token through a stack of decoder layers of Llama-3.1-8B's shape on the GPU: all at once, op by op, and
// op by op with rotation and page writes apart from attention.
// Times of graphs' replays, a layer. cuda_decoder_bench [bf16|fp8|int4_g128|q4_k|...] [layers] [lengths...]
#include <cstdio>
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

void run(const std::string& format, int num_layers, int length) {
  const std::unique_ptr<Gpu> gpu = Gpu::create({{"decoder_step", "on"}}, Compute::kAuto,
                                               format == "fp8" ? WeightQuantization::kF8 : WeightQuantization::kNone);
  if (gpu == nullptr) return;
  TestRandom random(5);
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

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  const std::string format = argc > 1 ? argv[1] : "bf16";
  const int num_layers = argc > 2 ? std::stoi(argv[2]) : 8;
  if (argc <= 3) quire::run(format, num_layers, 200);
  for (int i = 3; i < argc; ++i) quire::run(format, num_layers, std::stoi(argv[i]));
  return 0;
}
