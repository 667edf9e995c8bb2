// Running a grid on the host.
#pragma once

// A kernel, and the bytes of its only parameter.
struct Kernel {
  const char* name;
  void (*run)(const void* parameter);
  int parameter_size;
  Kernel* next;
};

// All linked kernels; instance.cpp makes one of each.
extern Kernel* kernels;

// Runs `blocks` blocks of `threads` threads, a multiple of 32. A kernel that a device would refuse, or that
// would hang, ends the process with a message.
void run_grid(const Kernel& kernel, const void* parameter, int threads, int blocks);
