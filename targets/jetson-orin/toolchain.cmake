# C and C++ for the Jetson Orin. Variables and their meaning: aarch64.cmake.
if(NOT ELSA_CPU)
  set(ELSA_CPU cortex-a78ae cortex-a76 cortex-a57)
endif()
include("${CMAKE_CURRENT_LIST_DIR}/../aarch64.cmake")
