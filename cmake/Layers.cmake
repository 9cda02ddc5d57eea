# One static library theseus_<folder> for each folder of csrc/, linked to every layer below it.
# tests/unit/test_layers.py holds the includes to the same order; the lists must stay equal.

# Lowest layer first. bindings/ is no library: see Bindings.cmake.
set(THESEUS_LAYERS
  base drivers net device priority context schedule compiler transport policy observe resource executor runtime nccl_api)
# Beside them: on base alone, used by nobody but their own extension, and no part of libtheseus.so.0.
set(THESEUS_SIDE_LAYERS flowsim rdma)
find_path(THESEUS_VERBS_INCLUDE infiniband/verbs.h)

# A folder with no source yet, or none at all, is an INTERFACE library: its first .cc file is found at the next build.
function(theseus_layer layer)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/csrc/${layer}/*.cc")
  if(sources)
    add_library(theseus_${layer} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(theseus_${layer} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(theseus_${layer} ${scope} "${PROJECT_SOURCE_DIR}/csrc")
  target_link_libraries(theseus_${layer} ${scope} ${ARGN} Threads::Threads ${CMAKE_DL_LIBS})
  if(layer STREQUAL "nccl_api")
    target_include_directories(theseus_nccl_api ${scope} "${PROJECT_SOURCE_DIR}/csrc/nccl_api/include")
  endif()
endfunction()

set(below "")
foreach(layer IN LISTS THESEUS_LAYERS)
  theseus_layer(${layer} ${below})
  # Highest first: a linker that reads archives once meets a caller before what it calls.
  list(PREPEND below theseus_${layer})
endforeach()
foreach(layer IN LISTS THESEUS_SIDE_LAYERS)
  if(layer STREQUAL "rdma" AND NOT THESEUS_VERBS_INCLUDE)
    message(STATUS "csrc/rdma left out: there are no headers of verbs (Debian, Ubuntu: apt-get install libibverbs-dev)")
    continue()
  endif()
  theseus_layer(${layer} theseus_base)
endforeach()

theseus_embed(drivers drivers/cuda/emu_device.h)
theseus_embed(device device/kernel_abi.h device/block.cuh device/flags.cuh device/numbers.cuh device/accesses.cuh
  device/packs.cuh device/frame.cuh device/simple.cuh device/ll.cuh device/leader.cuh device/primitives.cuh
  device/interpret.cuh device/divide.cuh device/transfer.cuh)
