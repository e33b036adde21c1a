// The kernels of this folder by instruction set, as kernels_scalar.cc, kernels_avx2.cc, kernels_avx512.cc and
// kernels_neon.cc make them from the same templates. kernel_rows.cc puts them in tables; nobody else calls them.
#pragma once

#include "ops/cpu/attention.h"
#include "ops/cpu/elementwise.h"

namespace quire::cpu {

#define QUIRE_DECLARE_KERNELS(suffix)                            \
  void rms_norm_##suffix(const RmsNormCall& call);               \
  void binary_##suffix(const BinaryCall& call);                  \
  void soft_cap_##suffix(const SoftCapCall& call);               \
  void rope_##suffix(const RopeCall& call);                      \
  void write_kv_##suffix(const WriteKvCall& call);               \
  void attention_##suffix(const AttentionCall& call);            \
  void attention_merge_##suffix(const AttentionMergeCall& call); \
  void attention_bf16_##suffix(const AttentionCall& call);       \
  void attention_merge_bf16_##suffix(const AttentionMergeCall& call);

QUIRE_DECLARE_KERNELS(scalar)
QUIRE_DECLARE_KERNELS(avx2)
QUIRE_DECLARE_KERNELS(avx512)
QUIRE_DECLARE_KERNELS(neon)
#undef QUIRE_DECLARE_KERNELS
void attention_bf16_avx512_bf16(const AttentionCall& call);
void attention_merge_bf16_avx512_bf16(const AttentionMergeCall& call);

#define QUIRE_DEFINE_KERNELS(suffix, Lanes)                               \
  void rms_norm_##suffix(const RmsNormCall& call) {                       \
    ElementwiseKernels<Lanes>::rms_norm(call);                            \
  }                                                                       \
  void binary_##suffix(const BinaryCall& call) {                          \
    ElementwiseKernels<Lanes>::binary(call);                              \
  }                                                                       \
  void soft_cap_##suffix(const SoftCapCall& call) {                       \
    ElementwiseKernels<Lanes>::soft_cap(call);                            \
  }                                                                       \
  void rope_##suffix(const RopeCall& call) {                              \
    ElementwiseKernels<Lanes>::rope(call);                                \
  }                                                                       \
  void write_kv_##suffix(const WriteKvCall& call) {                       \
    ElementwiseKernels<Lanes>::write_kv(call);                            \
  }                                                                       \
  void attention_##suffix(const AttentionCall& call) {                    \
    AttentionKernels<FloatProducts<Lanes>>::attend(call);                 \
  }                                                                       \
  void attention_merge_##suffix(const AttentionMergeCall& call) {         \
    AttentionKernels<FloatProducts<Lanes>>::merge_split(call);            \
  }                                                                       \
  void attention_bf16_##suffix(const AttentionCall& call) {               \
    AttentionBf16Kernels<EmulatedBf16Products<Lanes>>::attend(call);      \
  }                                                                       \
  void attention_merge_bf16_##suffix(const AttentionMergeCall& call) {    \
    AttentionBf16Kernels<EmulatedBf16Products<Lanes>>::merge_split(call); \
  }

}  // namespace quire::cpu
