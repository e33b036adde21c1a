// Attention by the products of pairs of AVX512_BF16. What is computed is in attention_kernels.h.
#include "ops/cpu/kernels.h"

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/attention_products_avx512_bf16.h"

namespace quire::cpu {

void attention_bf16_avx512_bf16(const AttentionCall& call) {
  AttentionBf16Kernels<Avx512Bf16Products>::attend(call);
}
void attention_merge_bf16_avx512_bf16(const AttentionMergeCall& call) {
  AttentionBf16Kernels<Avx512Bf16Products>::merge_split(call);
}

}  // namespace quire::cpu
