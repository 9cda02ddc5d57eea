// What happens to the library in a forked child: nothing, for good.
//
// A child must not hold its copies of our sockets (peers would not see the parent die), nor touch locks and threads
// that it did not inherit. Once the library runs in a process, every child made by fork() closes all registered
// descriptors at once and is marked; the entry points look at the mark and return InvalidUsage.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace theseus {

// From now on children of fork() are inert. Called when the first thread starts; idempotent.
void arm_fork_guard();

// True in a child of a process in which the library was running.
bool is_forked_child();

// Counts the forks between the process that armed the guard and this one. A descriptor of another generation is not
// ours to close: the child closed it already, and the number may have been given to someone else.
uint32_t fork_generation();

// InvalidUsage in a forked child, else ok.
Status check_not_forked();

// Descriptors that a child closes. Fd (base/fd.h) does this by itself.
void register_descriptor(int descriptor);
void unregister_descriptor(int descriptor);

}  // namespace theseus
