#include "ops/cuda/work_marks.h"

#include <vector>

#include "ops/cuda/cuda_support.h"

namespace quire::cuda {

namespace {

class StreamMarks : public WorkMarks {
 public:
  StreamMarks(cudaStream_t stream, int num_marks) : stream_(stream), events_(static_cast<size_t>(num_marks)) {
    for (cudaEvent_t& event : events_) CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  StreamMarks(const StreamMarks&) = delete;
  StreamMarks& operator=(const StreamMarks&) = delete;
  ~StreamMarks() override {
    for (const cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  }

  void record(int mark) override { CUDA_CHECK(cudaEventRecord(events_[static_cast<size_t>(mark)], stream_)); }
  void wait(int mark) override { CUDA_CHECK(cudaEventSynchronize(events_[static_cast<size_t>(mark)])); }

 private:
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
};

}  // namespace

std::unique_ptr<WorkMarks> create_work_marks(cudaStream_t stream, int num_marks) {
  return std::make_unique<StreamMarks>(stream, num_marks);
}

}  // namespace quire::cuda
