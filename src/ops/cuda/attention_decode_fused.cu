// Decode attention that takes over what comes before it: the rotation of queries and keys, and the writes of the step's
// own keys and values to their pages. One launch instead of two, and all pages are asked for while the kernel that
// makes the queries still runs: they hold what earlier steps wrote. The same bits as one after the other.
#include "ops/cuda/attention_decode_kernel.cuh"
#include "ops/cuda/elementwise.cuh"

namespace quire::cuda {

bool accepts_decode_fused(const AttentionCall& call, const RopeInputs& inputs) {
  const CudaAttentionPlan& plan = call.plan;
  const DType dtype = call.q.dtype();
  // A new key is read by its own row alone.
  if (plan.num_decode_sequences != call.batch.num_tokens || plan.num_prefill_sequences > 0 || plan.shares_new_keys) {
    return false;
  }
  if (!accepts_decode_split_kv(call)) return false;
  if (plan.num_decode_items * decode::num_parts_of(call) > num_multiprocessors() * decode::kMostSharedUnits) {
    return false;
  }
  if (inputs.k.dtype() != dtype || inputs.v.dtype() != dtype) return false;
  const int64_t rotary_dim = inputs.table.size(1);
  return rotary_dim > 0 && rotary_dim % 4 == 0 && rotary_dim <= call.kv.head_dim && inputs.table.stride(0) % 2 == 0 &&
         is_aligned(inputs.table.raw_data(), 4) && is_vectorizable(inputs.k) && is_vectorizable(inputs.v);
}

void attention_decode_fused(const AttentionCall& call, const RopeInputs& inputs) {
  CHECK(call.q.size(0) == call.batch.num_tokens);
  CHECK(call.out.size(0) == call.batch.num_tokens);
  CHECK(call.out.dtype() == call.q.dtype());
  CHECK(call.out.size(1) == call.q.size(1));
  CHECK(call.q.size(2) == call.kv.head_dim);
  CHECK(call.out.size(2) == call.kv.head_dim);
  CHECK(call.out.is_last_dimension_contiguous());
  CHECK(call.q.size(1) == call.plan.geometry.num_heads);
  CHECK(call.q.size(1) % call.kv.num_kv_heads == 0);
  CHECK(call.params.window == call.plan.geometry.window);
  CHECK(inputs.table.size(0) == call.q.size(0));
  for (const ConstTensorView& x : {inputs.k, inputs.v}) {
    CHECK(x.size(0) == call.q.size(0));
    CHECK(x.size(1) == call.kv.num_kv_heads);
    CHECK(x.size(2) == call.kv.head_dim);
  }
  CHECK(call.batch.slots.num_elements() == call.q.size(0));
  decode::FusedArgs args(decode::args_of(call));
  args.new_k = inputs.k.raw_data();
  args.new_k_token_stride = inputs.k.stride(0);
  args.new_k_head_stride = inputs.k.stride(1);
  args.new_v = inputs.v.raw_data();
  args.new_v_token_stride = inputs.v.stride(0);
  args.new_v_head_stride = inputs.v.stride(1);
  args.rope_table = inputs.table.data<float>();
  args.rope_stride = inputs.table.stride(0);
  args.rotary_half = static_cast<int>(inputs.table.size(1) / 2);
  args.is_interleaved = inputs.is_interleaved;
  args.slots = call.batch.slots.data<int64_t>();
  args.messages = static_cast<uint4*>(call.plan.messages.data());
  args.k_target = static_cast<char*>(call.kv.k);
  args.v_target = static_cast<char*>(call.kv.v);
  args.k_scale_target = static_cast<uint16_t*>(call.kv.k_scales);
  args.v_scale_target = static_cast<uint16_t*>(call.kv.v_scales);
  if (call.q.dtype() == DType::kBF16) return decode::launch_any<bf16, decode::Kind::kFused>(call, args);
  return decode::launch_any<f16, decode::Kind::kFused>(call, args);
}

}  // namespace quire::cuda
