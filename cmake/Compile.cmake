# One set of compile options for every target.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")

# The libraries find each other beside themselves, wherever the package lands, in the build tree as after an install.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/archive")

# Fused multiply-add would let two compilers, or two vector widths, round one reduction differently, and ranks must agree to the bit.
add_compile_options(-Wall -Wextra -ffp-contract=off)
# Our own functions are not meant to be replaced from outside, so calls between them need no indirection.
add_compile_options(-fno-semantic-interposition)

# GCC 12 takes the "undefined" operands of its own AVX-512 intrinsics for uninitialised variables, and sees overlapping copies
# in plain string concatenation (GCC bugs 105593 and 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options(-Wno-maybe-uninitialized -Wno-uninitialized -Wno-restrict)
endif()

if(THESEUS_WERROR)
  add_compile_options(-Werror)
endif()

if(THESEUS_SANITIZE)
  # The first finding ends a test. -O1 keeps the stacks true and the build short; -UNDEBUG has the assertions checked as well.
  add_compile_options(
    -fsanitize=${THESEUS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 -O1 -UNDEBUG)
  add_link_options(-fsanitize=${THESEUS_SANITIZE})
endif()

find_program(THESEUS_CCACHE ccache)
if(THESEUS_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${THESEUS_CCACHE}")
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
