// Memory of the machine for the backends that compute on the CPU: aligned blocks, refused with numbers when they cannot
// fit, so that a model too large ends in a message and not in the hands of the system's out-of-memory killer.
// Called at start only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/format_bytes.h"
#include "base/status.h"
#include "tensor/device.h"

namespace quire {

// What this process may still take: the system's available memory, or less where a cgroup limits it. `root` stands
// before /proc and /sys; empty for the real ones. A very large number where nothing says.
int64_t available_host_bytes(const std::string& root = {});

// A block aligned to 256 bytes (to huge pages if it is large, and backed by them where the system allows it). Its
// contents are zero if it is large, else arbitrary. `purpose` names it in the error.
Result<DeviceBuffer> allocate_host(int64_t num_bytes, const char* purpose);

// Brings the pages of a large block into memory, so that whoever writes it first does not wait for them one by one.
// From any thread. A wish: where the system cannot, they come when they are written.
void make_present(std::byte* data, int64_t num_bytes);

// The same in small pages, 4 KiB each, for a part of a large block that begins and ends on borders of huge pages (or
// ends where the block does). Where a virtual machine's host has taken free memory back it took large pieces only:
// small pages are then at hand when huge ones cost milliseconds each.
void make_present_in_small_pages(std::byte* data, int64_t num_bytes);

// Whether make_huge can do anything: Linux since 6.1.
bool can_make_huge();

// Moves what lies in small pages in [data, data + kHugePageBytes), on the border of a huge page of a large block, into
// a huge one. From any thread. False where the system has none: then all is as before.
bool make_huge(std::byte* data);

// What a page of a large block holds where the system allows huge ones; such blocks begin on a border of one.
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

}  // namespace quire
