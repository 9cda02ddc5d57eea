// The loop of loop.h on oneCCL, which finds its peers through Intel MPI.
#include <mpi.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "loop.h"
#include "oneapi/ccl.hpp"

namespace {

std::unique_ptr<ccl::communicator> communicator;
std::string failure;

const char* start(int* argc, char*** argv, loop_rank* self) {
  MPI_Init(argc, argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &self->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &self->ranks);
  try {
    ccl::init();
    ccl::shared_ptr_class<ccl::kvs> store;
    ccl::kvs::address_type address;
    if (self->rank == 0) {
      store = ccl::create_main_kvs();
      address = store->get_address();
    }
    MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (self->rank != 0) {
      store = ccl::create_kvs(address);
    }
    communicator = std::make_unique<ccl::communicator>(ccl::create_communicator(self->ranks, self->rank, store));
  } catch (const std::exception& error) {
    failure = error.what();
    return failure.c_str();
  }
  return nullptr;
}

void* allocate(size_t bytes) {
  void* memory = nullptr;
  return posix_memalign(&memory, 4096, bytes) == 0 ? memory : nullptr;
}

int run(loop_rank* self, loop_collective collective, size_t elements) {
  float* buffer = self->buffer;
  float* mine = buffer + static_cast<size_t>(self->rank) * elements;
  try {
    switch (collective) {
      case LOOP_ALLREDUCE:
        ccl::allreduce(buffer, buffer, elements, ccl::reduction::sum, *communicator).wait();
        return 0;
      case LOOP_ALLGATHER: {
        static std::vector<size_t> counts;
        counts.assign(static_cast<size_t>(self->ranks), elements);
        ccl::allgatherv(mine, elements, buffer, counts, *communicator).wait();
        return 0;
      }
      case LOOP_REDUCE_SCATTER:
        ccl::reduce_scatter(buffer, mine, elements, ccl::reduction::sum, *communicator).wait();
        return 0;
      case LOOP_BROADCAST: ccl::broadcast(buffer, elements, 0, *communicator).wait(); return 0;
      case LOOP_ALLTOALL: ccl::alltoall(buffer, self->output, elements, *communicator).wait(); return 0;
      default: return 1;
    }
  } catch (const std::exception&) {
    return 1;
  }
}

int barrier(loop_rank*) { return MPI_Barrier(MPI_COMM_WORLD); }

int maximum(loop_rank*, double* value) {
  return MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

// oneCCL's own teardown waits for MPI's, so the communicator goes first.
void stop(loop_rank*) {
  communicator.reset();
  MPI_Finalize();
}

size_t scattered_at(const loop_rank* self, size_t elements) { return static_cast<size_t>(self->rank) * elements; }

}  // namespace

int main(int argc, char** argv) {
  const loop_library library = {start, allocate, run, barrier, maximum, stop, scattered_at};
  return loop_main(&library, argc, argv);
}
