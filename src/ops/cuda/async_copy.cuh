// Copies of 16 bytes from memory into shared memory that no thread waits for until it needs them: on every GPU from
// compute capability 8.0 on. Hopper's copies of whole boxes are in hopper.cuh.
#pragma once

#include <cstdint>

namespace quire::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes that are read once, past the first cache. Source and target, an address in shared memory, are multiples of
// 16.
__device__ __forceinline__ void copy_16(uint32_t target, const void* source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}
// Zeros instead of those behind the first num_wanted.
__device__ __forceinline__ void copy_16(uint32_t target, const void* source, int num_wanted) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(num_wanted)
               : "memory");
}

__device__ __forceinline__ void copy_16(void* target, const void* source) {
  copy_16(shared_address(target), source);
}
__device__ __forceinline__ void copy_16_or_zeros(void* target, const void* source, bool is_there) {
  copy_16(shared_address(target), source, is_there ? 16 : 0);
}

// Makes a group of the copies that the thread has asked for since the last one; it may be empty.
__device__ __forceinline__ void end_copy_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until the thread's groups have come, but for the last so many. What other threads have copied needs a barrier too.
template <int NumPending>
__device__ __forceinline__ void wait_for_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(NumPending) : "memory");
}
__device__ __forceinline__ void wait_for_all_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace quire::cuda
