#include "ops/cpu/linear.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "ops/cpu/linear_drivers.h"
#include "ops/host_memory.h"
#include "quant/packing.h"
#include "quant/regroup.h"

namespace quire::cpu {

namespace {

constexpr std::string_view kInt8Groups = "int8_groups";
constexpr std::string_view kF32Ascending = "f32_ascending";
constexpr std::string_view kBF16Pairs = "bf16_pairs";

bool uses_int8(const LinearCall& call) {
  return call.compute != Compute::kF32 && !call.weight.quant().is_float;
}

// f16 weights that kBF16 rounds have become bf16 when they were packed.
bool uses_bf16(const LinearCall& call) {
  return call.compute != Compute::kF32 && call.weight.format == FormatId::kBF16;
}

bool uses_f32(const LinearCall& call) {
  return !uses_int8(call) && !uses_bf16(call);
}

#if defined(__x86_64__)
// With fewer the work around AMX's products outweighs them (Sapphire Rapids, 16 threads, 1536 x 576 in q8_0: at 32
// tokens 0.87, at 512 tokens 1.06 times the speed of VNNI).
constexpr int64_t kMinAmxTokens = 128;
#endif

// Best first. Rows of one order agree to the bit, so that what a machine chooses does not change what it answers.
constexpr KernelRow<LinearCall> kLinearRows[] = {
#if defined(__x86_64__)
    {"amx_int8",
     [](const LinearCall& call) {
       return uses_int8(call) && call.features.has_amx_int8() && call.x.size(0) >= kMinAmxTokens;
     },
     [](const LinearCall& call) { run_linear_int8(call, kAmxInt8Kernels); }, kInt8Groups},
    {"avx512_vnni_int8", [](const LinearCall& call) { return uses_int8(call) && call.features.has_avx512_vnni(); },
     [](const LinearCall& call) { run_linear_int8(call, kAvx512VnniInt8Kernels); }, kInt8Groups},
    {"avx512_int8", [](const LinearCall& call) { return uses_int8(call) && call.features.has_avx512(); },
     [](const LinearCall& call) { run_linear_int8(call, kAvx512Int8Kernels); }, kInt8Groups},
    {"avx2_int8", [](const LinearCall& call) { return uses_int8(call) && call.features.has_avx2(); },
     [](const LinearCall& call) { run_linear_int8(call, kAvx2Int8Kernels); }, kInt8Groups},
    {"avx512_bf16",
     [](const LinearCall& call) { return uses_bf16(call) && call.features.has_avx512() && call.features.avx512_bf16; },
     [](const LinearCall& call) { run_linear_bf16(call, kAvx512BF16Kernels); }, kBF16Pairs},
    {"avx512_bf16_emulated", [](const LinearCall& call) { return uses_bf16(call) && call.features.has_avx512(); },
     [](const LinearCall& call) { run_linear_bf16_emulated(call, kAvx512F32Kernels); }, kBF16Pairs},
    {"avx2_bf16_emulated", [](const LinearCall& call) { return uses_bf16(call) && call.features.has_avx2(); },
     [](const LinearCall& call) { run_linear_bf16_emulated(call, kAvx2F32Kernels); }, kBF16Pairs},
    {"avx512_f32", [](const LinearCall& call) { return uses_f32(call) && call.features.has_avx512(); },
     [](const LinearCall& call) { run_linear_f32(call, kAvx512F32Kernels); }, kF32Ascending},
    {"avx2_f32", [](const LinearCall& call) { return uses_f32(call) && call.features.has_avx2(); },
     [](const LinearCall& call) { run_linear_f32(call, kAvx2F32Kernels); }, kF32Ascending},
#elif defined(__aarch64__)
    {"neon_dotprod_int8", [](const LinearCall& call) { return uses_int8(call) && call.features.neon_dotprod; },
     [](const LinearCall& call) { run_linear_int8(call, kNeonDotprodInt8Kernels); }, kInt8Groups},
    {"neon_int8", [](const LinearCall& call) { return uses_int8(call) && call.features.neon; },
     [](const LinearCall& call) { run_linear_int8(call, kNeonInt8Kernels); }, kInt8Groups},
    {"neon_bf16_emulated", [](const LinearCall& call) { return uses_bf16(call) && call.features.neon; },
     [](const LinearCall& call) { run_linear_bf16_emulated(call, kNeonF32Kernels); }, kBF16Pairs},
    {"neon_f32", [](const LinearCall& call) { return uses_f32(call) && call.features.neon; },
     [](const LinearCall& call) { run_linear_f32(call, kNeonF32Kernels); }, kF32Ascending},
#endif
    {"scalar_int8", [](const LinearCall& call) { return uses_int8(call); },
     [](const LinearCall& call) { run_linear_int8(call, kScalarInt8Kernels); }, kInt8Groups},
    {"scalar_bf16_emulated", [](const LinearCall& call) { return uses_bf16(call); },
     [](const LinearCall& call) { run_linear_bf16_emulated(call, kScalarF32Kernels); }, kBF16Pairs},
    {"scalar_f32", [](const LinearCall& call) { return uses_f32(call); },
     [](const LinearCall& call) { run_linear_f32(call, kScalarF32Kernels); }, kF32Ascending},
};

void check_call(const LinearCall& call) {
  CHECK(call.weight.layout == Layout::kCpuPanels);
  CHECK(call.x.rank() == 2);
  CHECK(call.y.rank() == 2);
  CHECK(call.x.size(1) == call.weight.k);
  if (call.is_gated) {
    CHECK(call.weight.n % (2 * kPanelLanes) == 0);
    CHECK(!call.epilogue.residual.is_given());
  }
  CHECK(call.y.size(1) == (call.is_gated ? call.weight.n / 2 : call.weight.n));
  if (call.norm.weight.is_given()) CHECK(call.norm.weight.num_elements() == call.weight.k);
  CHECK(call.y.size(0) == call.x.size(0));
  CHECK(call.x.is_last_dimension_contiguous());
  CHECK(call.y.is_last_dimension_contiguous());
  CHECK(call.x.dtype() == DType::kF32);
  CHECK(call.y.dtype() == DType::kF32);
  const Epilogue& epilogue = call.epilogue;
  if (epilogue.bias.is_given()) CHECK(epilogue.bias.num_elements() == call.weight.n);
  if (epilogue.residual.is_given()) {
    CHECK(epilogue.residual.rank() == 2);
    CHECK(epilogue.residual.size(0) == call.y.size(0));
    CHECK(epilogue.residual.size(1) == call.weight.n);
    CHECK(epilogue.residual.is_last_dimension_contiguous());
  }
}

Weight expert_of(const Weight& weight, int64_t expert) {
  Weight one = weight;
  one.num_experts = 1;
  for (std::span<const std::byte>& part : one.parts) {
    const size_t bytes = part.size() / static_cast<size_t>(weight.num_experts);
    part = part.subspan(static_cast<size_t>(expert) * bytes, bytes);
  }
  return one;
}

}  // namespace

std::span<const KernelRow<LinearCall>> linear_rows() {
  return kLinearRows;
}

void linear(const LinearCall& call, std::string_view forced_row) {
  CHECK(call.weight.num_experts == 1);
  check_call(call);
  if (call.x.size(0) == 0 || call.weight.n == 0) return;
  choose_row(linear_rows(), call, forced_row).launch(call);
}

void grouped_linear(const LinearCall& call, ConstTensorView offsets, std::string_view forced_row) {
  CHECK(offsets.num_elements() == call.weight.num_experts + 1);
  const int32_t* starts = offsets.data<int32_t>();
  for (int64_t e = 0; e < call.weight.num_experts; ++e) {
    if (starts[e] == starts[e + 1]) continue;
    const Weight expert = expert_of(call.weight, e);
    Epilogue epilogue = call.epilogue;
    if (epilogue.residual.is_given()) epilogue.residual = epilogue.residual.slice(0, starts[e], starts[e + 1]);
    const LinearCall one{call.pool,
                         call.scratch,
                         call.features,
                         call.compute,
                         call.y.slice(0, starts[e], starts[e + 1]),
                         call.x.slice(0, starts[e], starts[e + 1]),
                         expert,
                         epilogue};
    linear(one, forced_row);
  }
}

Result<Weight> pack_weight(ThreadPool& pool, WeightMemory& memory, const Weight& file_weight) {
  if (file_weight.format == FormatId::kInt4G128) return pack_weight(pool, memory, regroup_int4(pool, file_weight));
  const PanelBytes bytes = packed_bytes(file_weight);
  // The scales begin on a cache line of their own.
  const int64_t codes_bytes = (bytes.codes + 255) / 256 * 256;
  ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> data, memory.take(pool, codes_bytes + bytes.scales));
  const std::span<std::byte> codes(data.get(), static_cast<size_t>(bytes.codes));
  const std::span<std::byte> scales(data.get() + codes_bytes, static_cast<size_t>(bytes.scales));
  pack_cpu_panels(pool, file_weight, codes, scales);
  Weight packed = file_weight;
  packed.layout = Layout::kCpuPanels;
  packed.parts = {codes, scales};
  packed.owner = data;
  return packed;
}

Result<Weight> round_to_bf16(ThreadPool& pool, const Weight& f16_weight) {
  CHECK(f16_weight.layout == Layout::kRowMajor);
  CHECK(f16_weight.format == FormatId::kF16);
  constexpr int64_t kElementsPerPiece = 1 << 18;
  const int64_t count = f16_weight.num_experts * f16_weight.n * f16_weight.k;
  ASSIGN_OR_RETURN(DeviceBuffer buffer, allocate_host(count * int64_t{sizeof(uint16_t)}, "weights in bf16"));
  const auto owner = std::make_shared<DeviceBuffer>(std::move(buffer));
  std::vector<uint16_t> rounded(1 << 16);
  for (size_t bits = 0; bits < rounded.size(); ++bits) {
    rounded[bits] = f32_to_bf16(f16_to_f32(static_cast<uint16_t>(bits)));
  }
  const std::byte* from = f16_weight.parts[0].data();
  std::byte* to = static_cast<std::byte*>(owner->data());
  pool.parallel_for(count, kElementsPerPiece, [&](const WorkRange& range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      uint16_t bits;
      std::memcpy(&bits, from + 2 * i, sizeof(bits));
      std::memcpy(to + 2 * i, &rounded[bits], sizeof(bits));
    }
  });
  Weight weight = f16_weight;
  weight.format = FormatId::kBF16;
  weight.parts = {std::span<const std::byte>(to, static_cast<size_t>(count) * sizeof(uint16_t))};
  weight.owner = owner;
  return weight;
}

void embedding(ThreadPool& pool, TensorView y, const Weight& table, ConstTensorView ids, float scale) {
  CHECK(y.rank() == 2);
  CHECK(y.size(0) == ids.num_elements());
  CHECK(y.size(1) == table.k);
  CHECK(y.is_last_dimension_contiguous());
  pool.parallel_for(y.size(0), 1, [&](const WorkRange& range) {
    for (int64_t t = range.begin; t < range.end; ++t) {
      float* out = y.data<float>() + t * y.stride(0);
      dequantize_packed_row(table, ids.data<int32_t>()[t], out);
      if (scale == 1.0f) continue;
      for (int64_t k = 0; k < table.k; ++k) out[k] *= scale;
    }
  });
}

}  // namespace quire::cpu
