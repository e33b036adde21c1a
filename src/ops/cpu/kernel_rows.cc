// Which kernel runs: the widest instruction set that the processor has. Rows of one table share a reduction order.
#include "ops/cpu/kernels.h"

namespace quire::cpu {

namespace {

template <typename Call>
const CpuFeatures& features_of(const Call& call) {
  if constexpr (requires { call.features; }) {
    return call.features;
  } else {
    return call.inputs.features;
  }
}

#if defined(__x86_64__)
template <typename Call>
bool accepts_avx512(const Call& call) {
  return features_of(call).has_avx512();
}
template <typename Call>
bool accepts_avx2(const Call& call) {
  return features_of(call).has_avx2();
}
#define QUIRE_VECTOR_ROWS(kernel, order) \
  {"avx512", accepts_avx512, kernel##_avx512, order}, {"avx2", accepts_avx2, kernel##_avx2, order},
#elif defined(__aarch64__)
template <typename Call>
bool accepts_neon(const Call& call) {
  return features_of(call).neon;
}
#define QUIRE_VECTOR_ROWS(kernel, order) {"neon", accepts_neon, kernel##_neon, order},
#else
#define QUIRE_VECTOR_ROWS(kernel, order)
#endif

template <typename Call>
bool accepts_all(const Call&) {
  return true;
}

// Attention has two orders, and rows of two names.
template <typename Call, bool (*accepts_processor)(const Call&)>
bool accepts_f32(const Call& call) {
  return call.inputs.compute == Compute::kF32 && accepts_processor(call);
}
template <typename Call, bool (*accepts_processor)(const Call&)>
bool accepts_bf16(const Call& call) {
  return call.inputs.compute != Compute::kF32 && accepts_processor(call);
}
constexpr std::string_view kF32Order = "chunks_of_128";
constexpr std::string_view kBf16Order = "chunks_of_128_bf16";
#define QUIRE_F32_ROW(name, Call, kernel) \
  { #name, accepts_f32 < Call, accepts_##name < Call>>, kernel##_##name, kF32Order }
#define QUIRE_EMULATED_ROW(name, Call, kernel) \
  { #name "_bf16_emulated", accepts_bf16 < Call, accepts_##name < Call>>, kernel##_bf16_##name, kBf16Order }
template <typename Call>
bool accepts_scalar(const Call&) {
  return true;
}
#if defined(__x86_64__)
template <typename Call>
bool accepts_avx512_bf16(const Call& call) {
  return features_of(call).has_avx512() && features_of(call).avx512_bf16;
}
#define QUIRE_ATTENTION_ROWS(Call, kernel)                                                               \
  {"avx512_bf16", accepts_bf16<Call, accepts_avx512_bf16<Call>>, kernel##_bf16_avx512_bf16, kBf16Order}, \
      QUIRE_EMULATED_ROW(avx512, Call, kernel), QUIRE_EMULATED_ROW(avx2, Call, kernel),                  \
      QUIRE_EMULATED_ROW(scalar, Call, kernel), QUIRE_F32_ROW(avx512, Call, kernel),                     \
      QUIRE_F32_ROW(avx2, Call, kernel), QUIRE_F32_ROW(scalar, Call, kernel)
#elif defined(__aarch64__)
#define QUIRE_ATTENTION_ROWS(Call, kernel)                                                                             \
  QUIRE_EMULATED_ROW(neon, Call, kernel), QUIRE_EMULATED_ROW(scalar, Call, kernel), QUIRE_F32_ROW(neon, Call, kernel), \
      QUIRE_F32_ROW(scalar, Call, kernel)
#else
#define QUIRE_ATTENTION_ROWS(Call, kernel) QUIRE_EMULATED_ROW(scalar, Call, kernel), QUIRE_F32_ROW(scalar, Call, kernel)
#endif

constexpr KernelRow<RmsNormCall> kRmsNormRows[] = {
    QUIRE_VECTOR_ROWS(rms_norm, "4x16_lanes"){"scalar", accepts_all, rms_norm_scalar, "4x16_lanes"}};
constexpr KernelRow<BinaryCall> kBinaryRows[] = {
    QUIRE_VECTOR_ROWS(binary, "elementwise"){"scalar", accepts_all, binary_scalar, "elementwise"}};
constexpr KernelRow<SoftCapCall> kSoftCapRows[] = {
    QUIRE_VECTOR_ROWS(soft_cap, "elementwise"){"scalar", accepts_all, soft_cap_scalar, "elementwise"}};
constexpr KernelRow<RopeCall> kRopeRows[] = {
    QUIRE_VECTOR_ROWS(rope, "elementwise"){"scalar", accepts_all, rope_scalar, "elementwise"}};
constexpr KernelRow<WriteKvCall> kWriteKvRows[] = {
    QUIRE_VECTOR_ROWS(write_kv, "elementwise"){"scalar", accepts_all, write_kv_scalar, "elementwise"}};
constexpr KernelRow<AttentionCall> kAttentionRows[] = {QUIRE_ATTENTION_ROWS(AttentionCall, attention)};
constexpr KernelRow<AttentionMergeCall> kAttentionMergeRows[] = {
    QUIRE_ATTENTION_ROWS(AttentionMergeCall, attention_merge)};

}  // namespace

std::span<const KernelRow<RmsNormCall>> rms_norm_rows() {
  return kRmsNormRows;
}
std::span<const KernelRow<BinaryCall>> binary_rows() {
  return kBinaryRows;
}
std::span<const KernelRow<SoftCapCall>> soft_cap_rows() {
  return kSoftCapRows;
}
std::span<const KernelRow<RopeCall>> rope_rows() {
  return kRopeRows;
}
std::span<const KernelRow<WriteKvCall>> write_kv_rows() {
  return kWriteKvRows;
}
std::span<const KernelRow<AttentionCall>> attention_rows() {
  return kAttentionRows;
}
std::span<const KernelRow<AttentionMergeCall>> attention_merge_rows() {
  return kAttentionMergeRows;
}

std::string_view attention_order(Compute compute) {
  return compute == Compute::kF32 ? kF32Order : kBf16Order;
}

int64_t attention_workspace_floats(int group_size, int head_dim) {
  const int64_t rows = attention_tile_rows(group_size);
  const int64_t padded_dim = padded_to_lanes(head_dim);
  const int64_t num_words = (head_dim + 1) / 2 * 2;  // pairs may be kept as two floats
  return padded_to_lanes(rows * num_words) + rows * kAttentionChunkTokens +
         padded_to_lanes(kAttentionChunkTokens * num_words) + kAttentionChunkTokens * padded_dim +
         4 * padded_to_lanes(rows) + padded_dim + attention_state_floats(rows, head_dim);
}

}  // namespace quire::cpu
