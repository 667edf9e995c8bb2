/* A stand-in for the header of the same name of NVIDIA's multimedia API: what elsa/nvbufsurface.hpp uses of it, with
   the same names and types. The EGLImage of a surface is its dataPtr, a CUeglFrame. */
#ifndef NVBUFSURFACE_H_
#define NVBUFSURFACE_H_

#include <stddef.h>
#include <stdint.h>

typedef struct {
    void *addr[4];
    void *eglImage;
} NvBufSurfaceMappedAddr;

typedef struct {
    void *dataPtr;
    NvBufSurfaceMappedAddr mappedAddr;
} NvBufSurfaceParams;

typedef struct {
    uint32_t batchSize;
    NvBufSurfaceParams *surfaceList;
} NvBufSurface;

/* Number of EGLImages that exist. */
static int egl_images;

static inline int NvBufSurfaceMapEglImage(NvBufSurface *surf, int index) {
    NvBufSurfaceParams *of = &surf->surfaceList[index];
    if (of->dataPtr == NULL) return -1;
    of->mappedAddr.eglImage = of->dataPtr;
    egl_images++;
    return 0;
}

static inline int NvBufSurfaceUnMapEglImage(NvBufSurface *surf, int index) {
    surf->surfaceList[index].mappedAddr.eglImage = NULL;
    egl_images--;
    return 0;
}

#endif
