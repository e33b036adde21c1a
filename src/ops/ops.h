// Ops: everything that layers ask of a backend. The one page to know before writing a kernel or a model.
//
// Three backends implement it: reference (plain float loops, the definition of correct), cpu and cuda. What holds for
// all:
//   - Shapes are written [outer, .., inner]. The last dimension is contiguous unless said otherwise; outer strides are
//   free.
//   - Activations are f32 on the CPU and bf16, f16 or f32 on the GPU; all activations of one call share a dtype, but
//   for the residual stream, which may be f32 beside 16-bit activations (Ops::residual_dtype).
//   - Sums, norms, softmax and angles are computed in float and rounded once, when the output is stored.
//   - Outputs do not overlap inputs, except where a comment says that one may be the other (exactly, not shifted).
//   - Sizes may be zero: then nothing is done. Shapes that do not fit are a CHECK: callers have validated the world.
//   - A call enqueues work on context.stream and returns; on the CPU it returns when the work is done. No op
//   synchronises,
//     allocates or locks: scratch comes from context.scratch and is given back before the call returns (the GPU's arena
//     is used in stream order, so that is safe there too).
//   - An output row depends on its own inputs alone, bit for bit: not on how many rows there are, nor on the number of
//   threads.
// Implementations are used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "quant/weight.h"
#include "tensor/arena.h"
#include "tensor/device.h"
#include "tensor/paged_kv.h"
#include "tensor/tensor.h"

namespace quire {

// What every call is given: where scratch comes from and where work is queued.
struct OpContext {
  Arena& scratch;
  void* stream = nullptr;  // cudaStream_t on the GPU; unused on the CPU
};

// How much may be rounded inside linear and attention. On a GPU kBF16 is kAuto, and the dtype of activations says more.
//   kF32: activations stay float; weights become floats inside the kernel.
//   kAuto: integer weights are multiplied by activations of 8 bits, bf16 weights by activations rounded to bf16; the
//          operands of attention's two products are rounded to bf16. f16 and f32 weights as under kF32.
//   kBF16: as kAuto, and f16 weights are rounded to bf16 too.
enum class Compute : uint8_t { kAuto, kF32, kBF16 };

enum class Activation : uint8_t {
  kSilu,      // x / (1 + e^-x)
  kGeluTanh,  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
};

// What linear adds before it stores: y = x·Wᵀ + bias + residual.
struct Epilogue {
  ConstTensorView bias;      // [n] f32, or not given
  ConstTensorView residual;  // [num_tokens, n] dtype of y, or not given; may be y itself
};

// An RMS norm of a linear layer's input; not given where the input is taken as it is.
struct InputNorm {
  ConstTensorView weight;  // [k] f32
  float epsilon = 0.0f;
  DType stream_rounds_to = DType::kF32;  // what an f32 input is once normed; of another dtype it keeps its own

  // Of what is multiplied, where x is the input.
  DType output_dtype(const ConstTensorView& x) const {
    return weight.is_given() && x.dtype() == DType::kF32 ? stream_rounds_to : x.dtype();
  }
};

enum class RopeStyle : uint8_t {
  kHalves,       // pairs (i, i + rotary_dim / 2): Hugging Face's rotate_half, GPT-NeoX
  kInterleaved,  // pairs (2i, 2i + 1): the original Llama files and GGUF's permuted q and k
};

// What the angles of a rotation are made of.
struct RopeParams {
  ConstTensorView
      inverse_frequencies;  // [rotary_dim / 2] f32: angle = position * inverse_frequency; scaling is already in it
  float attention_factor = 1.0f;  // multiplies cos and sin (yarn, longrope)
};

// The sequences of a step as attention sees them; equal for all layers of a KV group. Device tensors with host bounds,
// so that a captured graph can be replayed with other contents.
struct AttentionBatch {
  int num_sequences = 0;
  int num_tokens = 0;               // query tokens of all sequences, those of a sequence one after another
  ConstTensorView query_starts;     // [num_sequences + 1] i32: sequence s owns query rows [starts[s], starts[s + 1])
  ConstTensorView context_lengths;  // [num_sequences] i32: tokens of s in the KV memory, this step's included
  ConstTensorView page_table;  // [num_sequences, max_pages_per_sequence] i32: physical page of each logical page, or -1
                               // where a window has left the page behind (never read)
  ConstTensorView slots;  // [num_tokens] i64: page * page_size + offset of each token's own K and V; < 0: not written
  // The same on the host, for planning.
  std::span<const int32_t> host_query_starts;
  std::span<const int32_t> host_context_lengths;
  // [num_sequences]: what a sequence's queries are (ops/attention_parts.h). Where results must not depend on how a
  // prompt is divided (BackendOptions::is_strict), this says which order of sums a sequence gets; else it may be empty,
  // and the number of queries says so.
  std::span<const uint8_t> host_is_prompt = {};
};

struct AttentionParams {
  float scale = 1.0f;     // multiplies q·k
  float soft_cap = 0.0f;  // > 0: scores become cap * tanh(score / cap)
  int window = 0;         // > 0: query i sees keys j with i - window < j <= i; 0: all keys j <= i
  bool is_causal = true;  // else every query sees all keys of its sequence; without a window then
};

// Work items of a step's attention, made once a step and used by every layer of a group. Each backend has its own.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
  // Steps whose batches are of equal sizes and whose plans tell equal numbers can share a recording.
  virtual uint64_t shape() const { return 0; }
  // Memory of the device that it has taken, all of it when it was created.
  virtual int64_t device_bytes() const { return 0; }
};

// The geometry that a plan needs, one a KV group.
struct AttentionGeometry {
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int page_size = 0;
  int window = 0;
  DType kv_dtype = DType::kF16;
  int max_num_tokens = 0;  // upper bounds over all steps, for sizing
  int max_num_sequences = 0;
  int64_t max_context = 0;  // of one sequence
};

// How a row of logits becomes a token; plain data that is copied to the device.
struct SamplingRow {
  float inverse_temperature = 0.0f;  // 0: the greatest logit, of equal ones the lowest id
  float lowest = -27.5f;  // no chance where (logit - greatest) * inverse_temperature is below: log(min_p), or this
  float top_p = 1.0f;
  int32_t top_k = 0;          // 0: all
  int32_t num_token_ids = 0;  // ids from here on are never drawn
  uint64_t uniform_bits = 0;  // 53 random bits
};

// What changes logits before a token is drawn, and what is told of them after (ops/logits_rows.h).
struct LogitsAdjustments;
struct LogprobsCall;

// A decoder layer of the plain kind: x += output(attention(norm(x))), x += down(activation(gate) * up). No biases, no
// norms of heads.
struct StepLayer {
  ConstTensorView attention_norm;  // [hidden] f32
  Weight qkv;                      // outputs: query heads, key heads, value heads
  Weight output;
  ConstTensorView mlp_norm;
  Weight gate_up;  // outputs: gate, then as many of up
  Weight down;
};

// A step of one token through a whole stack of them.
struct DecoderStep {
  std::span<const StepLayer> layers;
  std::span<const PagedKv> layer_kv;  // of each layer
  TensorView y;                       // [1, hidden]: x behind the last layer
  ConstTensorView x;                  // [1, hidden]
  float norm_epsilon = 0.0f;
  int num_heads = 0;
  ConstTensorView rope_table;  // [1, head_dim] f32
  RopeStyle rope_style = RopeStyle::kHalves;
  AttentionParams attention;
  Activation activation = Activation::kSilu;
  const AttentionBatch& batch;  // one sequence with one query
};

class Ops {
 public:
  virtual ~Ops() = default;

  // ---- Memory ------------------------------------------------------------------------------------------------------

  virtual Device device() const = 0;
  virtual std::string description() const = 0;  // "cpu: avx512_vnni, 2 threads": for the log and benchmark records

  // The reduction orders and rounding that results come from: what was computed under other numerics (K and V kept on a
  // disk) is not mixed with ours. The default body takes the description.
  virtual std::string numerics() const { return description(); }

  // The dtype of the residual stream beside activations of this dtype: embedding's y; x of the norms (and of
  // norm_linear, norm_gated_linear); y and residual of the products that add to it; y and a of add. All its roundings
  // add up, so a stream in f32 takes a third off all errors of 16-bit activations, and cannot overflow in f16.
  virtual DType residual_dtype(DType activation_dtype) const { return activation_dtype; }

  // Whether K and V can be kept in this dtype.
  virtual bool takes_kv_dtype(DType dtype) const {
    return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
  }

  // Of the device, now: what this process may still take, and all that there is (the same where nothing tells). The
  // default body tells of the machine's memory.
  struct MemorySize {
    int64_t free_bytes = 0;
    int64_t total_bytes = 0;
  };
  virtual MemorySize memory() const;

  // At start only. `purpose` ("KV pages") appears in the error when memory is short.
  virtual Result<DeviceBuffer> allocate(int64_t num_bytes, const char* purpose) = 0;
  // Memory that the host reads and writes, for what goes to the device and comes from it every step: from and to it a
  // GPU copies while the host goes on (pinned). The default body gives ordinary memory.
  virtual Result<DeviceBuffer> allocate_for_host(int64_t num_bytes, const char* purpose);
  virtual void copy_to_device(OpContext& context, void* device_data, const void* host_data, int64_t num_bytes) = 0;
  virtual void copy_to_host(OpContext& context, void* host_data, const void* device_data, int64_t num_bytes) = 0;
  // Waits until everything enqueued on the stream is done. Called by the engine, once a step; never by an op.
  virtual void synchronize(OpContext& context) = 0;

  // ---- Weights -----------------------------------------------------------------------------------------------------

  // Re-lays a row-major weight for this backend's kernels, copying it to the device. `file_weight` may be released
  // after. A weight that is only gathered from (an embedding that is not tied) is packed too: embedding() takes what
  // pack() returns.
  virtual Result<Weight> pack(const Weight& file_weight) = 0;

  // Called between steps once a first token is out: some milliseconds of what pack() left for later, where
  // BackendOptions asks for a quick first token. It changes no bit of any result. By default there is nothing.
  virtual void do_late_work() {}

  // A packed weight of random values, for measuring: `shape` tells format, n, k and num_experts. The default body
  // makes rows on the host and packs them.
  virtual Result<Weight> make_random_weight(const Weight& shape, uint64_t seed);

  // ---- Embedding, norms, elementwise -------------------------------------------------------------------------------

  // y[t] = scale * table[ids[t]].   y: [num_tokens, hidden]   table: n = vocab, k = hidden   ids: [num_tokens] i32,
  // each in [0, n)
  virtual void embedding(OpContext& context, TensorView y, const Weight& table, ConstTensorView ids, float scale) = 0;

  // y[i] = x[rows[i]].   y: [num_rows, hidden]   x: [num_tokens, hidden]   rows: [num_rows] i32
  virtual void gather_rows(OpContext& context, TensorView y, ConstTensorView x, ConstTensorView rows) = 0;

  // y[t] = x[t] / sqrt(mean(x[t]²) + epsilon) * weight, over the last dimension. y may be x. x may be the residual
  // stream.
  //   x, y: [num_tokens, hidden] or [num_tokens, num_heads, head_dim]   weight: [hidden or head_dim] f32
  virtual void rms_norm(OpContext& context, TensorView y, ConstTensorView x, ConstTensorView weight, float epsilon) = 0;

  // x += delta; y = rms_norm(x), of the residual stream x. Fused; the default body calls add and rms_norm.
  virtual void add_rms_norm(OpContext& context, TensorView y, TensorView x, ConstTensorView delta,
                            ConstTensorView weight, float epsilon);

  // y = a + b, elementwise. y may be a or b.   all: [num_tokens, hidden], of one dtype, or y and a f32 (the residual
  // stream)
  virtual void add(OpContext& context, TensorView y, ConstTensorView a, ConstTensorView b) = 0;

  // y = activation(gate) * up.   y, gate, up: [num_tokens, intermediate]; y may be gate or up
  virtual void gated_activation(OpContext& context, TensorView y, ConstTensorView gate, ConstTensorView up,
                                Activation activation) = 0;

  // x = cap * tanh(x / cap), in place.   x: [num_rows, n] f32
  virtual void soft_cap(OpContext& context, TensorView x, float cap) = 0;

  // ---- Linear ------------------------------------------------------------------------------------------------------

  // y = x · Wᵀ (+ bias + residual).   x: [num_tokens, k]   y: [num_tokens, n], dtype of x or f32   weight: n × k,
  // packed
  virtual void linear(OpContext& context, TensorView y, ConstTensorView x, const Weight& weight,
                      const Epilogue& epilogue) = 0;

  // y = rms_norm(x) · Wᵀ (+ bias + residual), y of norm.output_dtype(x) or f32. Fused; the default body calls rms_norm
  // into scratch, and linear.
  virtual void norm_linear(OpContext& context, TensorView y, ConstTensorView x, const InputNorm& norm,
                           const Weight& weight, const Epilogue& epilogue);

  // y = activation(gate) * up, where gate and up are the halves of rms_norm(x) · Wᵀ, rounded to y's dtype; norm may be
  // left out. Fused; the default body calls norm_linear into scratch, and gated_activation.   y: [num_tokens, n / 2]
  virtual void norm_gated_linear(OpContext& context, TensorView y, ConstTensorView x, const InputNorm& norm,
                                 const Weight& weight, ConstTensorView bias, Activation activation);

  // One matrix an expert: rows [offsets[e], offsets[e + 1]) of x go through expert e. Mixture-of-experts layers sort
  // their tokens by expert first.   x: [num_rows, k]   y: [num_rows, n]   offsets: [num_experts + 1] i32
  virtual void grouped_linear(OpContext& context, TensorView y, ConstTensorView x, const Weight& weight,
                              ConstTensorView offsets) = 0;

  // ---- Attention over pages ----------------------------------------------------------------------------------------

  // The cos and sin of a step, which every layer's rope reads: angles are the same for all layers and heads, and
  // costly. A model fills one table a step for each RopeParams that it has.   positions: [num_tokens] i32
  //   table: [num_tokens, rotary_dim] f32: rotary_dim / 2 cosines, then as many sines, of the float product position *
  //   inverse_frequency, computed in float, times attention_factor
  virtual void rope_table(OpContext& context, TensorView table, ConstTensorView positions,
                          const RopeParams& params) = 0;

  // Rotates the first rotary_dim elements of every head, in place; the rest stays. Of a pair (a, b): a cos - b sin, and
  // b cos + a sin, each product rounded.   x: [num_tokens, num_heads, head_dim]   table: [num_tokens, rotary_dim] f32
  virtual void rope(OpContext& context, TensorView x, ConstTensorView table, RopeStyle style) = 0;

  // Stores this step's K and V in their slots, rounded to the cache's dtype. Where that is e4m3 or int8 each head's row
  // has the scale bf16(largest / 448), or 127 (1 where that is 0), and codes are of x * (1 / scale), to the nearest,
  // ties to even, and at most 448, or 127, in size.
  //   k, v: [num_tokens, num_kv_heads, head_dim]
  virtual void write_kv(OpContext& context, const PagedKv& kv, ConstTensorView k, ConstTensorView v,
                        ConstTensorView slots) = 0;

  // rope on q and k, then write_kv; k is left as it may be. Fused; the default body calls the three.
  //   q: [num_tokens, num_heads, head_dim]   k, v: [num_tokens, num_kv_heads, head_dim]
  struct KvTarget {
    const PagedKv& kv;
    ConstTensorView slots;
  };
  virtual void rope_and_write_kv(OpContext& context, TensorView q, TensorView k, ConstTensorView v,
                                 ConstTensorView table, RopeStyle style, const KvTarget& target);

  // Copies whole pages inside the pool, all layers at once: pages[i] = {from, to} (host memory). `page_bytes` apart
  // from `base`.
  struct PageCopy {
    int32_t from;
    int32_t to;
  };
  virtual void copy_pages(OpContext& context, void* base, int64_t page_bytes, std::span<const PageCopy> pages) = 0;

  // A plan object for a geometry, with its buffers sized for the largest step.
  virtual Result<std::unique_ptr<AttentionPlan>> create_attention_plan(const AttentionGeometry& geometry) = 0;

  // Fills the plan for this step. Host work only, plus copies enqueued on the stream.
  virtual void plan_attention(OpContext& context, AttentionPlan& plan, const AttentionBatch& batch) = 0;

  // out[i] = Σ_j softmax_j(score(i, j)) v[j], score = soft_cap(scale * q[i]·k[j]), over the keys of i's sequence at
  // positions <= its own and inside the window, or over all of them where is_causal is false (not on the CPU backend).
  // Query row r of a sequence with q_len queries and c context tokens stands at position c - q_len + r. Query head h
  // reads KV head h * num_kv_heads / num_heads. Slots past the context are never read. KV is walked in chunks of a
  // fixed size at absolute positions and partial results are merged in ascending order, so the answer does not depend
  // on page size, on chunking of the prompt, or on the batch.
  //   q, out: [num_tokens, num_heads, head_dim]
  virtual void attention(OpContext& context, TensorView out, ConstTensorView q, const PagedKv& kv,
                         const AttentionBatch& batch, const AttentionPlan& plan, const AttentionParams& params) = 0;

  // rope_and_write_kv, then attention: all that a layer does between two of its products. q and k are left as they may
  // be. Fused; the default body calls the two.   out, q: [num_tokens, num_heads, head_dim]   k, v: as in write_kv
  struct QueryKeyValue {
    TensorView q;
    TensorView k;
    ConstTensorView v;
    ConstTensorView rope_table;
    RopeStyle rope_style = RopeStyle::kHalves;
  };
  virtual void rope_and_attention(OpContext& context, TensorView out, const QueryKeyValue& inputs, const PagedKv& kv,
                                  const AttentionBatch& batch, const AttentionPlan& plan,
                                  const AttentionParams& params);

  // ---- Decoders ----------------------------------------------------------------------------------------------------

  // A step of one token through all layers at once: writes K and V to their pages, and y. False where the backend has
  // no such kernel for the step, and nothing was done: then layers are run op by op. Rounds where the ops would.
  virtual bool decoder_step(OpContext&, const DecoderStep&) { return false; }

  // ---- Sampling ----------------------------------------------------------------------------------------------------

  // Draws a token from every row of logits, in integer arithmetic that is the same on every device (ops/sample_rows.h):
  // of the top_k likeliest, the likeliest that together reach top_p, the one at which the running sum of weights, in
  // the order of ids, passes uniform_bits / 2^53 of all. -1 where a logit is NaN or infinite, or all are minus
  // infinity.   ids: [num_rows] i32   logits: [num_rows, vocab_size] f32   rows: num_rows of them, in device memory
  virtual void sample(OpContext& context, TensorView ids, ConstTensorView logits, const SamplingRow* rows);

  // Penalties, biases and masks of rows of logits, in place, each float operation rounded as ops/logits_rows.h has it.
  //   logits: [num_rows, vocab_size] f32
  virtual void adjust_logits(OpContext& context, TensorView logits, const LogitsAdjustments& adjustments);

  // The log-probabilities of a drawn token and of the likeliest ones, for the rows that want them.
  virtual void logprobs(OpContext& context, ConstTensorView logits, const LogprobsCall& call);

  // ---- Recordings --------------------------------------------------------------------------------------------------

  // Calls that the device repeats with one launch, on the same device tensors with other contents (CUDA graphs).
  class Recording {
   public:
    virtual ~Recording() = default;
  };
  virtual bool can_record() const { return false; }
  // Calls between these two are recorded, not run. Only what computes may be among them: no plans, no copies from or to
  // the host. What would have to be measured first must have run before. Null where the device refuses.
  virtual void begin_recording(OpContext&) {}
  virtual std::unique_ptr<Recording> end_recording(OpContext&) { return nullptr; }
  virtual void replay(OpContext&, const Recording&) {}
};

}  // namespace quire
