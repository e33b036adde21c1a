// Where memory lives, and an owner for a piece of it. Allocation itself is the business of a backend (ops/ops.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace quire {

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

// Owns `num_bytes` of device memory, aligned to 256 bytes at least. Move-only.
class DeviceBuffer {
 public:
  using Deleter = std::function<void(void*)>;

  DeviceBuffer() = default;
  DeviceBuffer(void* data, int64_t num_bytes, Device device, Deleter deleter)
      : data_(data), num_bytes_(num_bytes), device_(device), deleter_(std::move(deleter)) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    DeviceBuffer(std::move(other)).swap(*this);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) deleter_(data_);
  }

  void* data() const { return data_; }
  int64_t num_bytes() const { return num_bytes_; }
  Device device() const { return device_; }

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    std::swap(device_, other.device_);
    std::swap(deleter_, other.deleter_);
  }

  void* data_ = nullptr;
  int64_t num_bytes_ = 0;
  Device device_;
  Deleter deleter_;
};

}  // namespace quire
