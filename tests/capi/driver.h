/* Functions of NVIDIA's driver that the programs use, by their own names, from the library that the loader finds: the driver or
   the stand-in of tests/standin. */
#ifndef DRIVER_H
#define DRIVER_H

#include "common.h"

#include <dlfcn.h>

typedef unsigned long long address;

static int (*cuDevicePrimaryCtxRetain)(void **, int);
static int (*cuDevicePrimaryCtxRelease)(int);
static int (*cuCtxCreate)(void **, unsigned, int);
static int (*cuCtxDestroy)(void *);
static int (*cuCtxPushCurrent)(void *);
static int (*cuCtxPopCurrent)(void **);
static int (*cuMemAlloc)(address *, size_t);
static int (*cuMemAllocManaged)(address *, size_t, unsigned);
static int (*cuMemHostAlloc)(void **, size_t, unsigned);
static int (*cuMemFreeHost)(void *);
static int (*cuMemFree)(address);
static int (*cuMemcpyHtoD)(address, const void *, size_t);
static int (*cuMemcpyDtoH)(void *, address, size_t);
static int (*cuMemcpyHtoDAsync)(address, const void *, size_t, void *);
static int (*cuEventCreate)(void **, unsigned);
static int (*cuEventDestroy)(void *);
static int (*cuEventRecord)(void *, void *);
static int (*cuStreamWaitEvent)(void *, void *, unsigned);
static int (*cuStreamCreate)(void **, unsigned);
static int (*cuStreamDestroy)(void *);
static int (*cuStreamSynchronize)(void *);

static void find(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    CHECK(found != NULL);
    memcpy(function, &found, sizeof found);
}

static void open_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*cuInit)(unsigned);
    CHECK(library != NULL);
    find(library, "cuInit", &cuInit);
    find(library, "cuDevicePrimaryCtxRetain", &cuDevicePrimaryCtxRetain);
    /* Drivers from CUDA 11 on have the newer one. */
    find(library, dlsym(library, "cuDevicePrimaryCtxRelease_v2") ? "cuDevicePrimaryCtxRelease_v2" : "cuDevicePrimaryCtxRelease",
         &cuDevicePrimaryCtxRelease);
    find(library, "cuCtxCreate_v2", &cuCtxCreate);
    find(library, "cuCtxDestroy_v2", &cuCtxDestroy);
    find(library, "cuCtxPushCurrent_v2", &cuCtxPushCurrent);
    find(library, "cuCtxPopCurrent_v2", &cuCtxPopCurrent);
    find(library, "cuMemAlloc_v2", &cuMemAlloc);
    find(library, "cuMemAllocManaged", &cuMemAllocManaged);
    find(library, "cuMemHostAlloc", &cuMemHostAlloc);
    find(library, "cuMemFreeHost", &cuMemFreeHost);
    find(library, "cuMemFree_v2", &cuMemFree);
    find(library, "cuMemcpyHtoD_v2", &cuMemcpyHtoD);
    find(library, "cuMemcpyDtoH_v2", &cuMemcpyDtoH);
    find(library, "cuMemcpyHtoDAsync_v2", &cuMemcpyHtoDAsync);
    find(library, "cuEventCreate", &cuEventCreate);
    find(library, "cuEventDestroy_v2", &cuEventDestroy);
    find(library, "cuEventRecord", &cuEventRecord);
    find(library, "cuStreamWaitEvent", &cuStreamWaitEvent);
    find(library, "cuStreamCreate", &cuStreamCreate);
    find(library, "cuStreamDestroy_v2", &cuStreamDestroy);
    find(library, "cuStreamSynchronize", &cuStreamSynchronize);
    CHECK(cuInit(0) == 0);
}

static address upload(const void *from, size_t bytes) {
    address to = 0;
    CHECK(cuMemAlloc(&to, bytes) == 0 && cuMemcpyHtoD(to, from, bytes) == 0);
    return to;
}

#endif
