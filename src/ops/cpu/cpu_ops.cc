// Memory, weights and the ops that work row by row. Attention is in cpu_attention.cc.
#include "ops/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/attention.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/kernel_choices.h"
#include "ops/cpu/linear.h"
#include "ops/host_memory.h"
#include "quant/int8_rows.h"
#include "quant/packing.h"

namespace quire {

namespace {

// A slice for a thread holds about this many numbers: some microseconds, more than it costs to wake a thread.
constexpr int64_t kElementsPerSlice = 16'384;

// The widest set that the kernels use, for the log.
const char* instruction_set_name(const CpuFeatures& features) {
  if (features.has_avx512_vnni()) return "avx512_vnni";
  if (features.has_avx512()) return "avx512";
  if (features.has_avx2()) return "avx2";
  if (features.neon_dotprod) return "neon_dotprod";
  if (features.neon) return "neon";
  return "scalar";
}

// Rows of a matrix or of the heads of a [tokens, heads, size] tensor, once checked.
struct RowShape {
  int64_t num_tokens;
  int64_t num_heads;
  int64_t size;
  int64_t num_rows() const { return num_tokens * num_heads; }
};

RowShape row_shape(const ConstTensorView& x) {
  CHECK(x.rank() == 2 || x.rank() == 3);
  CHECK(x.dtype() == DType::kF32);
  CHECK(x.is_last_dimension_contiguous());
  return {x.size(0), x.rank() == 3 ? x.size(1) : 1, x.size(x.rank() - 1)};
}

void check_shape(const ConstTensorView& x, const RowShape& shape) {
  const RowShape own = row_shape(x);
  CHECK(own.num_tokens == shape.num_tokens);
  CHECK(own.num_heads == shape.num_heads);
  CHECK(own.size == shape.size);
}

cpu::HeadRows head_rows(const TensorView& x) {
  return {x.data<float>(), x.stride(0), x.rank() == 3 ? x.stride(1) : 0};
}
cpu::ConstHeadRows const_head_rows(const ConstTensorView& x) {
  return {x.data<float>(), x.stride(0), x.rank() == 3 ? x.stride(1) : 0};
}

// Runs the row of a table that suits the call on slices of its rows.
template <typename Call>
void run_slices(ThreadPool& pool, std::span<const KernelRow<Call>> rows, std::string_view forced_name, const Call& call,
                int64_t num_rows, int64_t row_size) {
  if (num_rows == 0 || row_size == 0) return;
  const KernelRow<Call>& row = choose_row(rows, call, forced_name);
  const int64_t grain = std::max<int64_t>(1, kElementsPerSlice / row_size);
  pool.parallel_for(num_rows, grain, [&](const WorkRange& range) {
    Call slice = call;
    slice.begin = range.begin;
    slice.end = range.end;
    row.launch(slice);
  });
}

}  // namespace

Result<std::unique_ptr<CpuOps>> CpuOps::create(const BackendOptions& options) {
  const CpuInfo info = read_cpu_info();
  for (const auto& [op, name] : options.forced_kernels) {
    const std::vector<std::string_view> possible = cpu::possible_rows(info.features, options.compute, op);
    if (possible.empty()) {
      return invalid_argument("--kernel: the cpu backend has no choice for \"" + op +
                              "\"; it has for linear, attention, rms_norm, elementwise, soft_cap, rope and write_kv");
    }
    if (std::find(possible.begin(), possible.end(), name) != possible.end()) continue;
    std::string names;
    for (const std::string_view row : possible) names += std::string(names.empty() ? "" : ", ") + std::string(row);
    return invalid_argument("--kernel " + op + "=" + name +
                            ": no such kernel runs on this processor with this --compute; there are " + names);
  }
  return std::unique_ptr<CpuOps>(new CpuOps(options, info));
}

CpuOps::CpuOps(const BackendOptions& options, const CpuInfo& info)
    : features_(info.features),
      compute_(options.compute),
      weight_quantization_(options.weight_quantization),
      forced_kernels_(options.forced_kernels.begin(), options.forced_kernels.end()),
      tuned_linear_(options.tuned_linear),
      pool_(options.num_threads > 0 ? options.num_threads : default_num_threads(info)),
      weight_memory_(options.is_first_token_urgent ? cpu::WeightMemory::Pages::kHugeOrSmall
                                                   : cpu::WeightMemory::Pages::kHuge) {}

std::string CpuOps::description() const {
  return std::string("cpu: ") + instruction_set_name(features_) + ", " + std::to_string(pool_.num_threads()) +
         (pool_.num_threads() == 1 ? " thread" : " threads");
}

// The rows of a table share an order, so that neither instruction set nor threads nor a forced row matter.
std::string CpuOps::numerics() const {
  std::string text = "cpu: int8_groups with fitted scales, bf16_pairs, f32_ascending";
  if (compute_ == Compute::kAuto) text += ", bf16 for bf16";
  if (compute_ == Compute::kBF16) text += ", bf16 for 16 bits";
  if (weight_quantization_ == WeightQuantization::kI8) text += ", weights in int8";
  for (const std::string_view order : {cpu::attention_order(compute_), cpu::rms_norm_rows().front().reduction_order,
                                       cpu::rope_rows().front().reduction_order}) {
    text += ", " + std::string(order);
  }
  return text;
}

std::string_view CpuOps::forced_kernel(std::string_view op) const {
  const auto found = forced_kernels_.find(op);
  return found == forced_kernels_.end() ? std::string_view() : found->second;
}

std::string_view CpuOps::preferred_linear(const Weight& weight, int64_t num_tokens) const {
  const std::string_view forced = forced_kernel("linear");
  if (!forced.empty()) return forced;
  for (const TunedLinear& tuned : tuned_linear_) {
    if (tuned.format == weight.format && (tuned.k == 0 || tuned.k == weight.k) && tuned.min_tokens <= num_tokens &&
        num_tokens <= tuned.max_tokens)
      return tuned.row;
  }
  return {};
}

Result<DeviceBuffer> CpuOps::allocate(int64_t num_bytes, const char* purpose) {
  return allocate_host(num_bytes, purpose);
}

void CpuOps::copy_to_device(OpContext&, void* device_data, const void* host_data, int64_t num_bytes) {
  if (num_bytes > 0) std::memcpy(device_data, host_data, static_cast<size_t>(num_bytes));
}

void CpuOps::copy_to_host(OpContext&, void* host_data, const void* device_data, int64_t num_bytes) {
  if (num_bytes > 0) std::memcpy(host_data, device_data, static_cast<size_t>(num_bytes));
}

Result<Weight> CpuOps::pack(const Weight& file_weight) {
  const bool becomes_int8 = weight_quantization_ == WeightQuantization::kI8 && can_round_to_int8(file_weight);
  if (!becomes_int8 && compute_ == Compute::kBF16 && file_weight.format == FormatId::kF16) {
    ASSIGN_OR_RETURN(const Weight rounded, cpu::round_to_bf16(pool_, file_weight));
    return cpu::pack_weight(pool_, weight_memory_, rounded);
  }
  if (becomes_int8) {
    return cpu::pack_weight(pool_, weight_memory_, round_to_int8(pool_, file_weight));
  }
  return cpu::pack_weight(pool_, weight_memory_, file_weight);
}

void CpuOps::embedding(OpContext&, TensorView y, const Weight& table, ConstTensorView ids, float scale) {
  cpu::embedding(pool_, y, table, ids, scale);
}

void CpuOps::gather_rows(OpContext&, TensorView y, ConstTensorView x, ConstTensorView rows) {
  CHECK(x.rank() == 2);
  CHECK(y.rank() == 2);
  CHECK(y.size(0) == rows.num_elements());
  CHECK(y.size(1) == x.size(1));
  CHECK(y.is_last_dimension_contiguous());
  CHECK(x.is_last_dimension_contiguous());
  const int32_t* sources = rows.data<int32_t>();
  for (int64_t i = 0; i < y.size(0); ++i) {
    CHECK(0 <= sources[i] && sources[i] < x.size(0));
    std::memcpy(y.data<float>() + i * y.stride(0), x.data<float>() + sources[i] * x.stride(0),
                static_cast<size_t>(x.size(1)) * sizeof(float));
  }
}

void CpuOps::rms_norm(OpContext&, TensorView y, ConstTensorView x, ConstTensorView weight, float epsilon) {
  const RowShape shape = row_shape(x);
  check_shape(y, shape);
  CHECK(weight.num_elements() == shape.size);
  const cpu::RmsNormCall call{.features = features_,
                              .y = head_rows(y),
                              .x = const_head_rows(x),
                              .delta = {},
                              .x_sum = {},
                              .weight = weight.data<float>(),
                              .epsilon = epsilon,
                              .size = shape.size,
                              .num_heads = shape.num_heads,
                              .begin = 0,
                              .end = 0};
  run_slices(pool_, cpu::rms_norm_rows(), forced_kernel("rms_norm"), call, shape.num_rows(), shape.size);
}

void CpuOps::add_rms_norm(OpContext&, TensorView y, TensorView x, ConstTensorView delta, ConstTensorView weight,
                          float epsilon) {
  const RowShape shape = row_shape(x);
  check_shape(y, shape);
  check_shape(delta, shape);
  CHECK(weight.num_elements() == shape.size);
  const cpu::RmsNormCall call{.features = features_,
                              .y = head_rows(y),
                              .x = const_head_rows(x),
                              .delta = const_head_rows(delta),
                              .x_sum = head_rows(x),
                              .weight = weight.data<float>(),
                              .epsilon = epsilon,
                              .size = shape.size,
                              .num_heads = shape.num_heads,
                              .begin = 0,
                              .end = 0};
  run_slices(pool_, cpu::rms_norm_rows(), forced_kernel("rms_norm"), call, shape.num_rows(), shape.size);
}

namespace {

cpu::BinaryCall binary_call(const CpuFeatures& features, cpu::BinaryOp op, const TensorView& y,
                            const ConstTensorView& a, const ConstTensorView& b) {
  CHECK(y.rank() == 2);
  const RowShape shape = row_shape(y);
  check_shape(a, shape);
  check_shape(b, shape);
  return {.features = features,
          .op = op,
          .y = y.data<float>(),
          .a = a.data<float>(),
          .b = b.data<float>(),
          .y_stride = y.stride(0),
          .a_stride = a.stride(0),
          .b_stride = b.stride(0),
          .size = shape.size,
          .begin = 0,
          .end = 0};
}

}  // namespace

void CpuOps::add(OpContext&, TensorView y, ConstTensorView a, ConstTensorView b) {
  const cpu::BinaryCall call = binary_call(features_, cpu::BinaryOp::kAdd, y, a, b);
  run_slices(pool_, cpu::binary_rows(), forced_kernel("elementwise"), call, y.size(0), y.size(1));
}

void CpuOps::gated_activation(OpContext&, TensorView y, ConstTensorView gate, ConstTensorView up,
                              Activation activation) {
  const cpu::BinaryOp op =
      activation == Activation::kSilu ? cpu::BinaryOp::kSiluMultiply : cpu::BinaryOp::kGeluTanhMultiply;
  const cpu::BinaryCall call = binary_call(features_, op, y, gate, up);
  run_slices(pool_, cpu::binary_rows(), forced_kernel("elementwise"), call, y.size(0), y.size(1));
}

void CpuOps::soft_cap(OpContext&, TensorView x, float cap) {
  CHECK(x.rank() == 2);
  CHECK(cap > 0);
  const RowShape shape = row_shape(x);
  const cpu::SoftCapCall call{.features = features_,
                              .x = x.data<float>(),
                              .stride = x.stride(0),
                              .cap = cap,
                              .size = shape.size,
                              .begin = 0,
                              .end = 0};
  run_slices(pool_, cpu::soft_cap_rows(), forced_kernel("soft_cap"), call, shape.num_rows(), shape.size);
}

cpu::LinearCall CpuOps::linear_call(OpContext& context, const TensorView& y, const ConstTensorView& x,
                                    const Weight& weight) {
  return {.pool = pool_,
          .scratch = context.scratch,
          .features = features_,
          .compute = compute_,
          .y = y,
          .x = x,
          .weight = weight,
          .epilogue = {}};
}

void CpuOps::linear(OpContext& context, TensorView y, ConstTensorView x, const Weight& weight,
                    const Epilogue& epilogue) {
  norm_linear(context, y, x, {}, weight, epilogue);
}

void CpuOps::norm_linear(OpContext& context, TensorView y, ConstTensorView x, const InputNorm& norm,
                         const Weight& weight, const Epilogue& epilogue) {
  cpu::LinearCall call = linear_call(context, y, x, weight);
  call.epilogue = epilogue;
  call.norm = norm;
  cpu::linear(call, preferred_linear(weight, x.size(0)));
}

void CpuOps::norm_gated_linear(OpContext& context, TensorView y, ConstTensorView x, const InputNorm& norm,
                               const Weight& weight, ConstTensorView bias, Activation activation) {
  if (weight.n % (2 * kPanelLanes) != 0) {
    // A panel holds outputs of both halves.
    Ops::norm_gated_linear(context, y, x, norm, weight, bias, activation);
    return;
  }
  cpu::LinearCall call = linear_call(context, y, x, weight);
  call.epilogue.bias = bias;
  call.norm = norm;
  call.is_gated = true;
  call.activation = activation;
  cpu::linear(call, preferred_linear(weight, x.size(0)));
}

void CpuOps::grouped_linear(OpContext& context, TensorView y, ConstTensorView x, const Weight& weight,
                            ConstTensorView offsets) {
  cpu::grouped_linear(linear_call(context, y, x, weight), offsets, preferred_linear(weight, x.size(0)));
}

void CpuOps::rope_table(OpContext&, TensorView table, ConstTensorView positions, const RopeParams& params) {
  const int64_t half = params.inverse_frequencies.num_elements();
  CHECK(table.rank() == 2);
  CHECK(table.size(0) == positions.num_elements());
  CHECK(table.size(1) == 2 * half);
  CHECK(table.is_last_dimension_contiguous());
  const int32_t* tokens = positions.data<int32_t>();
  const float* frequencies = params.inverse_frequencies.data<float>();
  // A sine and a cosine cost what some twenty additions cost.
  const int64_t grain = std::max<int64_t>(1, kElementsPerSlice / (20 * std::max<int64_t>(1, half)));
  pool_.parallel_for(table.size(0), grain, [&](const WorkRange& range) {
    for (int64_t t = range.begin; t < range.end; ++t) {
      float* out = table.data<float>() + t * table.stride(0);
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(tokens[t]) * frequencies[i];
        out[i] = std::cos(angle) * params.attention_factor;
        out[half + i] = std::sin(angle) * params.attention_factor;
      }
    }
  });
}

namespace {

cpu::RopeCall rope_call(const CpuFeatures& features, const TensorView& x, const ConstTensorView& table,
                        RopeStyle style) {
  CHECK(x.rank() == 3);
  const RowShape shape = row_shape(x);
  CHECK(table.rank() == 2);
  CHECK(table.size(0) == shape.num_tokens);
  CHECK(table.size(1) % 2 == 0);
  CHECK(table.size(1) <= shape.size);
  CHECK(table.is_last_dimension_contiguous());
  return {.features = features,
          .x = head_rows(x),
          .table = table.data<float>(),
          .table_stride = table.stride(0),
          .half_size = table.size(1) / 2,
          .is_interleaved = style == RopeStyle::kInterleaved,
          .num_heads = shape.num_heads,
          .begin = 0,
          .end = 0};
}

cpu::WriteKvCall write_kv_call(const CpuFeatures& features, const PagedKv& kv, const ConstTensorView& k,
                               const ConstTensorView& v, const ConstTensorView& slots) {
  CHECK(k.rank() == 3);
  const RowShape shape = row_shape(k);
  check_shape(v, shape);
  CHECK(shape.num_heads == kv.num_kv_heads);
  CHECK(shape.size == kv.head_dim);
  CHECK(slots.num_elements() == shape.num_tokens);
  CHECK(kv.dtype == DType::kF32 || kv.dtype == DType::kF16 || kv.dtype == DType::kBF16);
  const int64_t num_slots = int64_t{kv.num_pages} * kv.page_size;
  for (int64_t t = 0; t < shape.num_tokens; ++t) CHECK(slots.data<int64_t>()[t] < num_slots);
  return {.features = features,
          .k = const_head_rows(k),
          .v = const_head_rows(v),
          .k_cache = kv.k,
          .v_cache = kv.v,
          .dtype = kv.dtype,
          .page_stride = kv.page_stride,
          .head_stride = kv.head_stride,
          .token_stride = kv.token_stride,
          .page_size = kv.page_size,
          .slots = slots.data<int64_t>(),
          .head_dim = shape.size,
          .num_heads = shape.num_heads,
          .begin = 0,
          .end = 0};
}

// The part of a call that belongs to tokens [begin, end).
template <typename Call>
void launch_tokens(const KernelRow<Call>& row, const Call& call, int64_t begin, int64_t end) {
  Call slice = call;
  slice.begin = begin * call.num_heads;
  slice.end = end * call.num_heads;
  row.launch(slice);
}

}  // namespace

void CpuOps::rope(OpContext&, TensorView x, ConstTensorView table, RopeStyle style) {
  const cpu::RopeCall call = rope_call(features_, x, table, style);
  run_slices(pool_, cpu::rope_rows(), forced_kernel("rope"), call, x.size(0) * x.size(1), x.size(2));
}

void CpuOps::write_kv(OpContext&, const PagedKv& kv, ConstTensorView k, ConstTensorView v, ConstTensorView slots) {
  const cpu::WriteKvCall call = write_kv_call(features_, kv, k, v, slots);
  run_slices(pool_, cpu::write_kv_rows(), forced_kernel("write_kv"), call, k.size(0) * k.size(1), k.size(2));
}

// Token by token, so that K goes to its page from the first-level cache.
void CpuOps::rope_and_write_kv(OpContext&, TensorView q, TensorView k, ConstTensorView v, ConstTensorView table,
                               RopeStyle style, const KvTarget& target) {
  CHECK(q.size(0) == k.size(0));
  const cpu::RopeCall rope_q = rope_call(features_, q, table, style);
  const cpu::RopeCall rope_k = rope_call(features_, k, table, style);
  const cpu::WriteKvCall write = write_kv_call(features_, target.kv, k, v, target.slots);
  const int64_t num_tokens = q.size(0);
  if (num_tokens == 0 || q.size(2) == 0) return;
  const KernelRow<cpu::RopeCall>& rope_row = choose_row(cpu::rope_rows(), rope_q, forced_kernel("rope"));
  const KernelRow<cpu::WriteKvCall>& write_row = choose_row(cpu::write_kv_rows(), write, forced_kernel("write_kv"));
  const int64_t token_size = (q.size(1) + 2 * k.size(1)) * q.size(2);
  const int64_t grain = std::max<int64_t>(1, kElementsPerSlice / std::max<int64_t>(1, token_size));
  pool_.parallel_for(num_tokens, grain, [&](const WorkRange& range) {
    for (int64_t t = range.begin; t < range.end; ++t) {
      launch_tokens(rope_row, rope_q, t, t + 1);
      launch_tokens(rope_row, rope_k, t, t + 1);
      launch_tokens(write_row, write, t, t + 1);
    }
  });
}

void CpuOps::copy_pages(OpContext&, void* base, int64_t page_bytes, std::span<const PageCopy> pages) {
  char* bytes = static_cast<char*>(base);
  // One after another: a page may be read by one copy and written by a later one.
  for (const PageCopy& page : pages) {
    std::memmove(bytes + page.to * page_bytes, bytes + page.from * page_bytes, static_cast<size_t>(page_bytes));
  }
}

}  // namespace quire
