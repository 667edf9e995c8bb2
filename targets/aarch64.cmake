# Shared by the toolchain files of the boards: C and C++ for 64-bit ARM with Linux.
#
#   cmake -DCMAKE_TOOLCHAIN_FILE=.../toolchain.cmake -Delsa_DIR=.../lib/cmake/elsa ...
#
# ELSA_CPU      cores that the code is tuned for, as GCC's -mtune names them: the first of the list that the compiler
#               knows. Default: those of the board. The instruction set stays ARMv8.0-A.
# ELSA_CROSS    start of the compiler's name, with its path where it is not in PATH. Default: aarch64-linux-gnu-
# ELSA_ZIG      zig instead of GCC, as a list of words, such as "zig" or "python3;-m;ziglang"; links against
#               glibc 2.27 without a sysroot.
# ELSA_SYSROOT  a copy of the board's /lib, /usr/lib and /usr/include, for GCC and the other libraries of the program,
#               such as OpenCV or CUDA. Without it GCC's own C library is used, which must not be newer than the
#               board's: a program linked on a newer system does not start there.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
# CMake reads this file again for the programs with which it tests the compiler.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ELSA_CPU ELSA_CROSS ELSA_ZIG ELSA_SYSROOT)

if(ELSA_ZIG)
  # CMake 3.19 and later accept a compiler that is a list of words; earlier versions take the other words as an argument.
  set(elsa_words ${ELSA_ZIG})
  list(GET elsa_words 0 elsa_zig)
  list(REMOVE_AT elsa_words 0)
  string(REPLACE ";" " " elsa_words "${elsa_words}")
  set(CMAKE_C_COMPILER ${elsa_zig})
  set(CMAKE_C_COMPILER_ARG1 "${elsa_words} cc -target aarch64-linux-gnu.2.27")
  set(CMAKE_CXX_COMPILER ${elsa_zig})
  set(CMAKE_CXX_COMPILER_ARG1 "${elsa_words} c++ -target aarch64-linux-gnu.2.27")
  # zig's own drivers also read an instruction set from -mtune; these flags are for the compiler behind them.
  set(elsa_compiler ${ELSA_ZIG} cc -target aarch64-linux-gnu.2.27)
  set(elsa_tune "-Xclang -tune-cpu -Xclang ")
  set(elsa_flags "")
  # zig's C driver does not link the unwinder; other drivers do.
  set(CMAKE_C_STANDARD_LIBRARIES_INIT "-lunwind")
else()
  if(NOT ELSA_CROSS)
    set(ELSA_CROSS aarch64-linux-gnu-)
  endif()
  set(CMAKE_C_COMPILER ${ELSA_CROSS}gcc)
  set(CMAKE_CXX_COMPILER ${ELSA_CROSS}g++)
  set(elsa_compiler ${CMAKE_C_COMPILER} -march=armv8-a)
  set(elsa_tune "-mtune=")
  set(elsa_flags "-march=armv8-a ")
endif()

foreach(elsa_cpu ${ELSA_CPU})
  string(REPLACE " " ";" elsa_words "${elsa_tune}${elsa_cpu}")
  execute_process(COMMAND ${elsa_compiler} ${elsa_words} -E -x c /dev/null
    RESULT_VARIABLE elsa_status OUTPUT_QUIET ERROR_QUIET)
  if(elsa_status EQUAL 0)
    set(elsa_flags "${elsa_flags}${elsa_tune}${elsa_cpu}")
    break()
  endif()
endforeach()
# CMake itself reports a compiler that does not run: its status is not a number.
if(elsa_status MATCHES "^[1-9]")
  message(FATAL_ERROR "ELSA_CPU: ${ELSA_CPU}; allowed: a core that the compiler knows, such as cortex-a57")
endif()
set(CMAKE_C_FLAGS_INIT "${elsa_flags}")
set(CMAKE_CXX_FLAGS_INIT "${elsa_flags}")

if(ELSA_SYSROOT)
  set(CMAKE_SYSROOT ${ELSA_SYSROOT})
endif()
# Folders of this machine do not exist on the board: a program also looks for shared libraries next to itself, even before
# it is installed.
set(CMAKE_INSTALL_RPATH "$ORIGIN")
set(CMAKE_BUILD_WITH_INSTALL_RPATH TRUE)
# Programs of this machine; libraries and headers of the board.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
if(ELSA_SYSROOT)
  set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
  set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
endif()
