# C and C++ for the Jetson TX1. Variables and their meaning: aarch64.cmake.
if(NOT ELSA_CPU)
  set(ELSA_CPU cortex-a57)
endif()
include("${CMAKE_CURRENT_LIST_DIR}/../aarch64.cmake")
