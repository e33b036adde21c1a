// The host's part of a step of one token: which steps are taken, and the launch.
#include "ops/cuda/decoder_step.h"

#include <algorithm>
#include <bit>

#include "ops/cuda/cuda_support.h"
#include "ops/cuda/decoder_step_launch.h"
#include "ops/cuda/weights.h"

namespace quire::cuda {

namespace {

constexpr int64_t kMemoryBytes = 8 << 20;

// How weights lie, one kind for a whole stack.
struct Kind {
  enum class Layout : uint8_t { kNone, kRows, kF8Rows, kPanels } layout = Layout::kNone;
  ScaleKind scale_kind = ScaleKind::kNone;  // of panels
  int stored_bits = 0;
  int code_offset = 0;
  bool operator==(const Kind&) const = default;
};

Kind kind_of(const Weight& weight, DType dtype) {
  if (weight.num_experts != 1 || !is_aligned(weight.parts[0].data(), 16)) return {};
  if (weight.layout == Layout::kCudaF8) {
    if (weight.k % 16 != 0) return {};
    return {.layout = Kind::Layout::kF8Rows};
  }
  if (weight.layout != Layout::kCudaPlanes) return {};
  if (weight.quant().is_float) {
    const FormatId own = dtype == DType::kBF16 ? FormatId::kBF16 : FormatId::kF16;
    if (weight.format != own || weight.k % 8 != 0) return {};
    return {.layout = Kind::Layout::kRows};
  }
  const DeviceWeight device = device_weight(weight);
  const Kind kind{.layout = Kind::Layout::kPanels,
                  .scale_kind = device.panel.scale_kind,
                  .stored_bits = device.stored_bits,
                  .code_offset = device.panel.offset};
  if (!takes_step_panels(kind.scale_kind, kind.stored_bits) || weight.n % kPanelLanes != 0 || weight.k % 256 != 0 ||
      !is_aligned(device.scales, 16)) {
    return {};
  }
  return kind;
}

bool is_same_geometry(const PagedKv& a, const PagedKv& b) {
  return a.dtype == b.dtype && a.page_stride == b.page_stride && a.head_stride == b.head_stride &&
         a.token_stride == b.token_stride && a.page_size == b.page_size && a.num_kv_heads == b.num_kv_heads &&
         a.head_dim == b.head_dim;
}

// All but the sizes of weights, which are checked a layer.
bool takes_geometry(const DecoderStep& step) {
  const PagedKv& kv = step.layer_kv[0];
  const DType dtype = step.x.dtype();
  const int64_t hidden = step.x.size(1);
  const auto is_wide = [&](int64_t stride) { return stride % 8 == 0; };
  return step.layers.size() <= step::kMostLayers && step.layer_kv.size() == step.layers.size() && step.x.size(0) == 1 &&
         step.batch.num_sequences == 1 && step.batch.num_tokens == 1 &&
         (dtype == DType::kBF16 || dtype == DType::kF16) && step.y.dtype() == dtype && kv.dtype == dtype &&
         (kv.head_dim == 64 || kv.head_dim == 128) && kv.token_stride == kv.head_dim && is_wide(kv.page_stride) &&
         is_wide(kv.head_stride) && kv.page_size >= step::kStepKeys &&
         std::has_single_bit(static_cast<unsigned>(kv.page_size)) && step.num_heads % kv.num_kv_heads == 0 &&
         step.num_heads / kv.num_kv_heads <= step::kMostGroup && step.rope_table.size(1) == kv.head_dim &&
         step.attention.soft_cap == 0 && step.attention.window == 0 && hidden % 16 == 0 &&
         hidden <= step::kNormedVectors * step::kThreads * 8 &&
         int64_t{step.num_heads} * kv.head_dim <= step::kNormedVectors * step::kThreads * 8 &&
         is_aligned(step.x.raw_data(), 16);
}

struct Plan {
  step::Args args;
  Kind kind;
  int64_t memory_bytes;
  DecoderStepMemory::Shape shape;
};

// False where the kernel does not take the step.
bool make_plan(Plan& plan, const DecoderStep& step, int num_blocks) {
  if (step.layers.empty() || !takes_geometry(step)) return false;
  const PagedKv& kv = step.layer_kv[0];
  const DType dtype = step.x.dtype();
  const int64_t hidden = step.x.size(1);
  const int64_t intermediate = step.layers[0].down.k;
  const int64_t query_size = int64_t{step.num_heads} * kv.head_dim;
  const int64_t kv_size = int64_t{kv.num_kv_heads} * kv.head_dim;
  if (intermediate % 16 != 0 || intermediate > step::kVectors * step::kThreads * 8 ||
      (hidden / kPanelLanes + num_blocks - 1) / num_blocks * kPanelLanes > step::kMostOwnRows) {
    return false;
  }
  plan.kind = kind_of(step.layers[0].qkv, dtype);
  if (plan.kind == Kind{}) return false;
  step::Args& args = plan.args;
  for (size_t i = 0; i < step.layers.size(); ++i) {
    const StepLayer& layer = step.layers[i];
    const PagedKv& own_kv = step.layer_kv[i];
    const Weight* const weights[step::kNumProducts] = {&layer.qkv, &layer.output, &layer.gate_up, &layer.down};
    const int64_t sizes[step::kNumProducts][2] = {
        {query_size + 2 * kv_size, hidden}, {hidden, query_size}, {2 * intermediate, hidden}, {hidden, intermediate}};
    for (int product = 0; product < step::kNumProducts; ++product) {
      const Weight& weight = *weights[product];
      if (!(kind_of(weight, dtype) == plan.kind) || weight.n != sizes[product][0] || weight.k != sizes[product][1]) {
        return false;
      }
      args.layers[i].weights[product] = reinterpret_cast<const char*>(weight.parts[0].data());
      args.layers[i].scales[product] =
          plan.kind.layout != Kind::Layout::kRows ? reinterpret_cast<const float*>(weight.parts[1].data()) : nullptr;
    }
    if (!is_same_geometry(own_kv, kv) || !is_aligned(own_kv.k, 16) || !is_aligned(own_kv.v, 16) ||
        !is_aligned(layer.attention_norm.raw_data(), 16) || !is_aligned(layer.mlp_norm.raw_data(), 16)) {
      return false;
    }
    args.layers[i].attention_norm = layer.attention_norm.data<float>();
    args.layers[i].mlp_norm = layer.mlp_norm.data<float>();
    args.layers[i].k = static_cast<char*>(own_kv.k);
    args.layers[i].v = static_cast<char*>(own_kv.v);
  }
  args.x = step.x.raw_data();
  args.y = step.y.raw_data();
  args.rope_table = step.rope_table.data<float>();
  args.context_lengths = step.batch.context_lengths.data<int32_t>();
  args.page_table = step.batch.page_table.data<int32_t>();
  args.slots = step.batch.slots.data<int64_t>();
  args.page_bytes = kv.page_stride * 2;
  args.head_bytes = kv.head_stride * 2;
  args.num_layers = static_cast<int>(step.layers.size());
  args.hidden = static_cast<int>(hidden);
  args.intermediate = static_cast<int>(intermediate);
  args.num_heads = step.num_heads;
  args.num_kv_heads = kv.num_kv_heads;
  args.page_shift = std::countr_zero(static_cast<unsigned>(kv.page_size));
  args.epsilon = step.norm_epsilon;
  constexpr float kLog2e = 1.4426950408889634f;
  args.scale = step.attention.scale * kLog2e;
  args.gate = step.activation == Activation::kSilu ? Gate::kSilu : Gate::kGeluTanh;
  args.is_interleaved = step.rope_style == RopeStyle::kInterleaved;
  args.code_offset = plan.kind.code_offset;
  plan.shape = {hidden, intermediate, query_size, kv_size, kv.head_dim};

  // Offsets into the shape's memory first.
  constexpr int64_t kCounterBytes = 1024;
  static_assert((step::kNumParts + 1) * step::kCounterStride * 4 <= kCounterBytes);
  int64_t num_bytes = kCounterBytes;
  const auto take = [&](int64_t count, int64_t bytes) {
    const int64_t offset = num_bytes;
    num_bytes += (count * bytes + 255) / 256 * 256;
    return offset;
  };
  const auto values = [&](int64_t count) { return reinterpret_cast<void*>(take(count, 2)); };
  step::Exchange& exchange = args.exchange;
  exchange.qkv = values(query_size + 2 * kv_size);
  exchange.mixed = values(query_size);
  exchange.middle = values(hidden);
  exchange.gated = values(intermediate);
  exchange.x = values(hidden);
  exchange.copies = reinterpret_cast<char*>(kCounterBytes);
  exchange.copy_bytes = static_cast<int>(num_bytes - kCounterBytes);
  num_bytes += exchange.copy_bytes;
  exchange.partials =
      reinterpret_cast<uint64_t*>(take(int64_t{step::kMostChunks} * step.num_heads * (kv.head_dim + 2), 8));
  exchange.counters = nullptr;
  exchange.claims = static_cast<uint32_t*>(reinterpret_cast<void*>(take(step::kMostLayers * step::kNumProducts, 4)));
  plan.memory_bytes = num_bytes;
  return true;
}

template <typename Pointer>
void place_at(Pointer*& pointer, char* base) {
  pointer = reinterpret_cast<Pointer*>(base + reinterpret_cast<intptr_t>(pointer));
}

}  // namespace

Result<DecoderStepMemory> DecoderStepMemory::create() {
  void* data = nullptr;
  if (const cudaError_t error = cudaMalloc(&data, kMemoryBytes); error != cudaSuccess) {
    (void)cudaGetLastError();
    return resource_exhausted(std::string("the GPU has no 8 MiB left: ") + cudaGetErrorString(error));
  }
  CUDA_CHECK(cudaMemset(data, 0, kMemoryBytes));
  DecoderStepMemory memory;
  memory.memory_ =
      DeviceBuffer(data, kMemoryBytes, Device{DeviceKind::kCuda, 0}, [](void* block) { (void)cudaFree(block); });
  return Result<DecoderStepMemory>(std::move(memory));
}

char* DecoderStepMemory::find(const Shape& shape, int64_t num_bytes, bool& is_new) {
  char* const base = static_cast<char*>(memory_.data());
  for (const Part& part : parts_) {
    if (part.shape == shape) {
      is_new = false;
      return base + part.offset;
    }
  }
  if (num_used_ + num_bytes > memory_.num_bytes()) return nullptr;
  parts_.push_back({shape, num_used_});
  num_used_ += num_bytes;
  is_new = true;
  return base + parts_.back().offset;
}

bool decoder_step(cudaStream_t stream, DecoderStepMemory& memory, const DecoderStep& step, bool is_asked_for) {
  Plan plan;
  const int num_blocks = num_multiprocessors();
  if (!make_plan(plan, step, num_blocks)) return false;
  if (!is_asked_for && plan.kind.layout != Kind::Layout::kF8Rows) return false;
  bool is_new = false;
  char* const base = memory.find(plan.shape, plan.memory_bytes, is_new);
  if (base == nullptr) return false;
  step::Exchange& exchange = plan.args.exchange;
  place_at(exchange.qkv, base);
  place_at(exchange.mixed, base);
  place_at(exchange.middle, base);
  place_at(exchange.gated, base);
  place_at(exchange.x, base);
  place_at(exchange.partials, base);
  place_at(exchange.claims, base);
  place_at(exchange.copies, base);
  if (is_new) {
    CUDA_CHECK(cudaMemsetAsync(exchange.copies, 0xff, 2 * static_cast<size_t>(exchange.copy_bytes), stream));
  }
  exchange.counters = reinterpret_cast<uint32_t*>(base);
  const StepLaunch launch{.stream = stream,
                          .args = plan.args,
                          .num_blocks = num_blocks,
                          .dtype = step.x.dtype(),
                          .head_dim = static_cast<int>(plan.shape.head_dim)};
  switch (plan.kind.layout) {
    case Kind::Layout::kRows:
      return launch_step_rows(launch);
    case Kind::Layout::kF8Rows:
      return launch_step_f8_rows(launch);
    case Kind::Layout::kPanels:
      return launch_step_panels(launch, plan.kind.scale_kind);
    case Kind::Layout::kNone:
      break;
  }
  return false;
}

}  // namespace quire::cuda
