// What the files of this folder need to know of GPUs: the driver of this process, and streams as Python names them.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "bindings/buffer.h"
#include "drivers/cuda/api.h"
#include "runtime/communicator.h"

namespace theseus::bindings {

// The driver whose memory communicators made now work on; null: host memory.
cuda::Driver* gpu_driver();

// What a call on a GPU takes its place in: an int, what has `__cuda_stream__`, torch's `cuda_stream`, CuPy's `ptr`, or
// an int `handle`. None: the stream that the buffer's owner named, else the default stream.
void* stream_of(const char* function, pybind11::handle stream, const Buffer& buffer);

// Refuses memory that a communicator's ranks cannot work on: host memory where `driver` is a GPU's, and a GPU's where
// it is null.
void check_place(const Role& role, const Buffer& buffer, cuda::Driver* driver);

// Work that is done when `stream` has got as far as it is now. `communicator` lives as long as it is used.
Result<std::shared_ptr<Work>> work_of_stream(cuda::Driver& driver, int device, void* stream);

}  // namespace theseus::bindings
