/* A stand-in for CUDA's header of the same name, and the part of cuda.h that it needs: what elsa/nvbufsurface.hpp uses
   of them, with the same names and types. An EGLImage is a CUeglFrame; one without planes is refused. */
#ifndef CUDAEGL_H
#define CUDAEGL_H

#include <stddef.h>

typedef enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 } CUresult;
typedef enum {
    CU_AD_FORMAT_UNSIGNED_INT8 = 0x01,
    CU_AD_FORMAT_UNSIGNED_INT16 = 0x02,
    CU_AD_FORMAT_HALF = 0x10,
    CU_AD_FORMAT_FLOAT = 0x20
} CUarray_format;
typedef enum { CU_EGL_FRAME_TYPE_ARRAY = 0, CU_EGL_FRAME_TYPE_PITCH = 1 } CUeglFrameType;
typedef struct CUarray_st *CUarray;
typedef struct CUgraphicsResource_st *CUgraphicsResource;
typedef void *EGLImageKHR;

typedef struct {
    union {
        CUarray pArray[3];
        void *pPitch[3];
    } frame;
    unsigned int width, height, depth, pitch, planeCount, numChannels;
    CUeglFrameType frameType;
    CUarray_format cuFormat;
} CUeglFrame;

/* Number of resources that exist. */
static int graphics_resources;

static inline CUresult cuGraphicsEGLRegisterImage(CUgraphicsResource *resource, EGLImageKHR image, unsigned int flags) {
    if (flags != 0 || ((CUeglFrame *)image)->planeCount == 0) return CUDA_ERROR_INVALID_VALUE;
    *resource = (CUgraphicsResource)image;
    graphics_resources++;
    return CUDA_SUCCESS;
}

static inline CUresult cuGraphicsResourceGetMappedEglFrame(CUeglFrame *frame, CUgraphicsResource resource,
                                                           unsigned int index, unsigned int level) {
    if (index != 0 || level != 0) return CUDA_ERROR_INVALID_VALUE;
    *frame = *(CUeglFrame *)resource;
    return CUDA_SUCCESS;
}

static inline CUresult cuGraphicsUnregisterResource(CUgraphicsResource resource) {
    graphics_resources--;
    return resource != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#endif
