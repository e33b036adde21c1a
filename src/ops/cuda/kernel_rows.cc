// The tables of the CUDA backend's kernel rows, best first.
#include "ops/cuda/attention.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/linear_cublaslt.h"
#include "ops/cuda/linear_even_rows.h"
#include "ops/cuda/linear_few_tokens.h"
#include "ops/cuda/linear_int8.h"

namespace quire::cuda {

namespace {

template <typename Call>
bool accepts_any(const Call&) {
  return true;
}

constexpr KernelRow<LinearCall> kLinearRows[] = {
    {"gemv_tokens", accepts_gemv_tokens, linear_gemv_tokens, "gemv_tokens"},
    {"gemv", accepts_gemv, linear_gemv, "gemv"},
    {"even_rows", accepts_even_rows, linear_even_rows, "decode"},
    {"gemv_integer", accepts_gemv_integer, linear_gemv_integer, "gemv"},
    {"few_tokens", accepts_few_tokens, linear_few_tokens, "decode"},
    {"few_tokens_integer", accepts_few_tokens_integer, linear_few_tokens_integer, "few_tokens_integer"},
    {"int8", accepts_int8, linear_int8, "int8"},
    {"skinny_mma", accepts_skinny_mma, linear_skinny_mma, "decode"},
    {"cublaslt", accepts_cublaslt, linear_cublaslt, "prefill"},
    {"cublaslt_f8", accepts_cublaslt_f8, linear_cublaslt_f8, "prefill"},
    {"dequantize_cublaslt", accepts_dequantize_cublaslt, linear_dequantize_cublaslt, "prefill"},
    {"any_shape", accepts_any<LinearCall>, linear_any_shape, "any_shape"},
};

constexpr KernelRow<AttentionCall> kAttentionRows[] = {
    {"decode_split_kv", accepts_decode_split_kv, attention_decode_split_kv, "decode"},
    {"prefill_wgmma", accepts_prefill_wgmma, attention_prefill_wgmma, "prefill"},
    {"any_shape", accepts_any<AttentionCall>, attention_any_shape, "any_shape"},
};

}  // namespace

std::span<const KernelRow<LinearCall>> linear_rows() {
  return kLinearRows;
}

std::span<const KernelRow<AttentionCall>> attention_rows() {
  return kAttentionRows;
}

}  // namespace quire::cuda
