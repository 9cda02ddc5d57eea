// How a failing Status becomes a Python exception here: ValueError for a wrong argument, resccl.LimitError for what is
// too large, RuntimeError for the rest. The translator is this module's own (bind_errors.cc), and goes first.
#pragma once

#include "bindings/errors.h"

namespace theseus::resccl {

using bindings::check;
using bindings::StatusError;
using bindings::take;

}  // namespace theseus::resccl
