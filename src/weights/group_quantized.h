// Checkpoints whose matrices GPTQ, AWQ or llm-compressor rounded to 4 bits: codes, zero points and scales stand in
// three tensors beside one another. Each becomes one matrix of a format of ours, with the same values (scales of bf16
// or f32 are rounded to f16), so that nothing behind this file knows of them; opening checks shapes, and what is in the
// tensors is turned when it is prepared, in memory that is given back once it has been copied elsewhere:
//   groups of a multiple of 128 inputs: int4_g128; of a multiple of 32: q4_0 where the zero point is 8, else q5_0; f16
//   where the groups are not of neighbouring inputs (desc_act), of all matrices if of one.
// Called by weights/checkpoint and the loader at start, on the calling thread and a pool of its own.
#pragma once

#include <memory>

#include "base/status.h"
#include "weights/group_quantization.h"
#include "weights/tensor_source.h"

namespace quire {

// The tensors of `files`, with each group-quantized matrix X as "X.weight".
Result<std::unique_ptr<TensorSource>> open_group_quantized(std::unique_ptr<TensorSource> files,
                                                           const GroupQuantization& quantization);

}  // namespace quire
