// A request under way: first, where that may pay, over shared buffers; else, and after that, by its plan.
#pragma once

#include "executor/shared_execution.h"
#include "runtime/impl.h"

namespace theseus {

class RequestRun {
 public:
  // The request stays where it is until Done.
  RequestRun(Communicator::Impl& impl, Request& request) : impl_(impl), request_(request) {
    if (request.op.scaled) request.binding.scalar = request.op.scalar;
    impl.running_tag = &request.binding.tag;
    if (impl.trace != nullptr) [[unlikely]]
      request.begun_ns = now_ns();
    sharing_ = request.try_shared && impl.shared != nullptr && impl.shared->due(request.binding.tag);
    if (sharing_) {
      impl.shared->start({request.binding, request.binding.tag.signature.collective, request.binding.tag.signature.root,
                          request.input_bytes, request.output_bytes});
    } else if (request.padded_count != 0) [[unlikely]] {
      start(request.plan->staging->enter(request.binding, request.padded_count, *request.held.staging));
    } else {
      start(request.binding);
    }
  }

  ~RequestRun() { impl_.running_tag = nullptr; }
  RequestRun(const RequestRun&) = delete;
  RequestRun& operator=(const RequestRun&) = delete;

  Advance advance() {
    if (sharing_) {
      const Advance state = impl_.shared->advance();
      if (state != Advance::Done || impl_.shared->served()) return state;
      sharing_ = false;
      start(request_.binding);
    }
    return request_.held.execution->advance();
  }

  const Status& status() const { return sharing_ ? impl_.shared->status() : request_.held.execution->status(); }

 private:
  void start(const Binding& binding) {
    request_.held.execution->start(*request_.held.program, *request_.held.shape, binding);
  }

  Communicator::Impl& impl_;
  Request& request_;
  bool sharing_ = false;
};

}  // namespace theseus
