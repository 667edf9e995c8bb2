# C and C++ for the Jetson Orin. Variables and their meaning: aarch64.cmake.
set(ELSA_CPU cortex-a57)
include("${CMAKE_CURRENT_LIST_DIR}/../aarch64.cmake")
