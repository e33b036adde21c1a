# How every target of the project is built: options, warnings, sanitizers, and the helper functions that the folders use.

option(QUIRE_TESTS "Build the tests" ON)
option(QUIRE_FUZZERS "Build the libFuzzer targets (clang only)" OFF)
set(QUIRE_CUDA "AUTO" CACHE STRING "Build the CUDA backend: AUTO (where nvcc is found), ON or OFF")
set(QUIRE_SANITIZE "" CACHE STRING "Value for -fsanitize, for example address,undefined")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(QUIRE_CCACHE ccache)
if(QUIRE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${QUIRE_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${QUIRE_CCACHE}")
endif()

# One reduction order per kernel row: the compiler may not fuse or reorder floating-point operations on its own, and
# -ffp-contract=off makes every fused multiply-add in the source an explicit one.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(QUIRE_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${QUIRE_SANITIZE}> $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>)
  add_link_options(-fsanitize=${QUIRE_SANITIZE})
  # Boost.Asio has fences, of which gcc warns that ThreadSanitizer does not see them; its locks say enough.
  if(QUIRE_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>)
  endif()
endif()
if(QUIRE_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
endif()

set(QUIRE_HAS_CUDA OFF)
if(NOT QUIRE_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90a)
    endif()
    enable_language(CUDA)
    # CMake 3.25 does not know that nvcc speaks C++20 since version 12.
    foreach(kind STANDARD EXTENSION)
      if(NOT CMAKE_CUDA20_${kind}_COMPILE_OPTION)
        set(CMAKE_CUDA20_${kind}_COMPILE_OPTION "-std=c++20")
      endif()
    endforeach()
    set(CMAKE_CUDA_STANDARD 20)
    find_package(CUDAToolkit REQUIRED)
    set(QUIRE_HAS_CUDA ON)
  elseif(QUIRE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "QUIRE_CUDA is ON, but no nvcc was found. Install the CUDA toolkit, or leave QUIRE_CUDA at AUTO.")
  else()
    message(STATUS "quire: no CUDA compiler found, this build serves from the CPU only")
  endif()
endif()

function(quire_compile_options target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Werror>)
  # CHECK(a == b) takes its expression apart with operator<<, on purpose.
  target_compile_options(${target} PRIVATE
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:-Wno-overloaded-shift-op-parentheses>)
  # GCC 12 warns falsely of overlap in `"text" + std::string` (its bug 105651).
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)
  target_include_directories(${target} PUBLIC "${CMAKE_SOURCE_DIR}/src")
endfunction()

# quire_library(name SOURCES... ): the static library of one folder. Dependencies by target_link_libraries.
function(quire_library name)
  add_library(${name} STATIC ${ARGN})
  quire_compile_options(${name})
endfunction()

# quire_test(name SOURCES files LIBS libs [LABELS labels]): one test binary, run by ctest. Label cpu is the default.
function(quire_test name)
  cmake_parse_arguments(TEST "" "" "SOURCES;LIBS;LABELS" ${ARGN})
  if(NOT QUIRE_TESTS)
    return()
  endif()
  add_executable(${name} ${TEST_SOURCES})
  quire_compile_options(${name})
  target_link_libraries(${name} PRIVATE ${TEST_LIBS} GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE QUIRE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  if(NOT TEST_LABELS)
    set(TEST_LABELS cpu)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${TEST_LABELS}" TIMEOUT 1200)
endfunction()

# quire_fuzzer(name SOURCES files LIBS libs): a libFuzzer target, built only with QUIRE_FUZZERS.
function(quire_fuzzer name)
  cmake_parse_arguments(FUZZER "" "" "SOURCES;LIBS" ${ARGN})
  if(NOT QUIRE_FUZZERS)
    return()
  endif()
  add_executable(${name} ${FUZZER_SOURCES})
  quire_compile_options(${name})
  target_link_libraries(${name} PRIVATE ${FUZZER_LIBS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()

if(QUIRE_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
endif()
