// The headers of elsa.hpp for tensors of other libraries, with the declarations of tests/capi/foreign in place of those
// libraries, and NVIDIA's driver or the stand-in: each tensor of one call comes from another library, has gaps between
// its rows, and is used in place. And all refusals.
#include "elsa.hpp"
#include "elsa/dlpack.hpp"
#include "elsa/nvbufsurface.hpp"
#include "elsa/opencv_cuda.hpp"
#include "elsa/tensorrt.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "driver.h"

namespace {

// Elements of a row of all heads, and from each row to the next.
const std::size_t WIDTH = H * D, STEP = WIDTH + 12;
const std::size_t PITCH = STEP * sizeof(float);

void *pointer(address at) { return reinterpret_cast<void *>(static_cast<std::size_t>(at)); }

// Uploads x [H, N, D] as rows of all heads. The gaps between the rows are not numbers.
address upload_rows(const float *x) {
    std::vector<float> rows(N * STEP, std::nanf(""));
    for (std::size_t h = 0; h < H; h++)
        for (std::size_t i = 0; i < N; i++) std::copy_n(x + (h * N + i) * D, std::size_t(D), &rows[i * STEP + h * D]);
    return upload(rows.data(), rows.size() * sizeof(float));
}

// Downloads rows of all heads into `out`, and checks that nothing was written between them.
void download_rows(address at) {
    std::vector<float> rows(N * STEP);
    CHECK(cuMemcpyDtoH(rows.data(), at, rows.size() * sizeof(float)) == 0);
    bool gaps = true;
    for (std::size_t i = 0; i < N; i++) {
        for (std::size_t h = 0; h < H; h++) std::copy_n(&rows[i * STEP + h * D], std::size_t(D), out + (h * N + i) * D);
        for (std::size_t c = WIDTH; c < STEP; c++) gaps = gaps && std::isnan(rows[i * STEP + c]);
    }
    CHECK(gaps);
}

template <class Result>
void refused(const Result &found, const std::string &message, elsa_status code = ELSA_STATUS_ARGUMENT) {
    CHECK(!found.ok() && found.status().code() == code);
    if (found.message().find(message) != 0) std::fprintf(stderr, "%s\n", found.message().c_str());
    CHECK(found.message().find(message) == 0);
}

bool same(const elsa_view &a, const elsa_view &b) {
    return std::equal(a.shape, a.shape + 4, b.shape) && std::equal(a.strides, a.strides + 4, b.strides);
}

DLTensor dltensor(void *data, int rank, int64_t *shape, int64_t *strides) {
    DLTensor made = DLTensor();
    made.data = data;
    made.device.device_type = kDLCUDA;
    made.ndim = rank;
    made.dtype.code = kDLFloat;
    made.dtype.bits = 32;
    made.dtype.lanes = 1;
    made.shape = shape;
    made.strides = strides;
    return made;
}

CUeglFrame picture(void *data) {
    CUeglFrame made = CUeglFrame();
    made.frame.pPitch[0] = data;
    made.width = WIDTH;
    made.height = N;
    made.pitch = PITCH;
    made.planeCount = made.numChannels = 1;
    made.frameType = CU_EGL_FRAME_TYPE_PITCH;
    made.cuFormat = CU_AD_FORMAT_FLOAT;
    return made;
}

template <class T>
elsa::result<elsa::strided<T>> bound(const nvinfer1::IExecutionContext &context, void *const *bindings,
                                     const char *name = "tokens", elsa_layout layout = ELSA_LAYOUT_BNHD) {
#if NV_TENSORRT_MAJOR < 10
    return elsa::from_tensorrt<T>("v", context, name, bindings, layout);
#else
    static_cast<void>(bindings);
    return elsa::from_tensorrt<T>("v", context, name, layout);
#endif
}

// Checks a call whose tensors come from four libraries.
void in_place(const elsa::engine &engine) {
    std::memset(out, 0xff, sizeof out);
    const address at[] = {upload_rows(q), upload_rows(k), upload_rows(v), upload_rows(out)};

    const cv::cuda::GpuMat mat(N, WIDTH / 4, 5, 4, pointer(at[0]), PITCH);
    int64_t shape[] = {1, N, H, D}, strides[] = {0, STEP, D, 1};
    DLTensor keys = dltensor(pointer(at[1] - 64), 4, shape, strides);
    keys.byte_offset = 64;
    nvinfer1::IExecutionContext context;
    context.shape = {3, {N, H, D}};
    context.strides = {3, {STEP, D, 1}};
    context.address = pointer(at[2]);
    void *const bindings[] = {nullptr, pointer(at[2])};
    CUeglFrame image = picture(pointer(at[3]));
    NvBufSurfaceParams list[2] = {};
    list[1].dataPtr = &image;
    NvBufSurface surface = {2, list};
    {
        const elsa::nvbuf_frame frame = elsa::nvbuf_frame::map("out", surface, 1).value();
        CHECK(egl_images == 1 && graphics_resources == 1 && frame.frame().width == WIDTH);

        const elsa::strided<float> queries = elsa::from_opencv<float>("q", mat, H).value();
        const elsa::strided<float> of_keys = elsa::from_dlpack<float>("k", keys, ELSA_LAYOUT_BNHD).value();
        const elsa::strided<float> values = bound<float>(context, bindings).value();
        const elsa::strided<float> answer = frame.tensor<float>("out", H).value();
        const elsa_view view = {{1, H, N, D}, {N * STEP, D, STEP, 1}};
        CHECK(same(queries.view(), view) && same(answer.view(), view));
        CHECK(queries.data() == pointer(at[0]) && of_keys.data() == pointer(at[1]) && values.data() == pointer(at[2]));
        CHECK(answer.data() == pointer(at[3]) && answer.size() == (N - 1) * STEP + WIDTH);

        elsa::problem<float> problem;
        problem.q = queries.view();
        problem.k = of_keys.view();
        problem.v = values.view();
        problem.out = answer.view();
        const elsa::plan<float> plan = engine.plan(problem).value();
        const elsa::workspace room = plan.workspace().value();
        elsa::inputs<float> in;
        in.q = queries;
        in.k = of_keys;
        in.v = values;
        elsa::outputs<float> to;
        to.out = answer;
        elsa::report report;
        const elsa::status done = plan.run_device(room, in, to, nullptr, &report);
        CHECK(done.ok() && report.backend == ELSA_BACKEND_CUDA && report.copied_bytes == 0);
    }
    CHECK(egl_images == 0 && graphics_resources == 0);
    download_rows(at[3]);
    CHECK(error() < 1e-5);
    for (const address memory : at) CHECK(cuMemFree(memory) == 0);
}

void opencv() {
    float memory[64];
    const auto mat = [&](int rows, int cols, int depth, int channels, std::size_t pitch) {
        return cv::cuda::GpuMat(rows, cols, depth, channels, memory, pitch);
    };
    // Two sequences of three tokens, in halves.
    const elsa_view view = {{2, 4, 3, 2}, {30, 2, 10, 1}};
    CHECK(same(elsa::from_opencv<elsa::f16>("q", mat(6, 8, 7, 1, 20), 4, 2).value().view(), view));
    CHECK(same(elsa::from_opencv<elsa::bf16>("q", mat(6, 8, 2, 1, 20), 4, 2).value().view(), view));
    refused(elsa::from_opencv<float>("q", mat(6, 8, 7, 1, 20), 4), "q: matrix of depth 7; allowed: 5");
    refused(elsa::from_opencv<elsa::f16>("q", mat(6, 8, 5, 1, 40), 4), "q: matrix of depth 5; allowed: 7");
    refused(elsa::from_opencv<float>("q", mat(5, 8, 5, 1, 40), 4, 2), "q: 5 rows; allowed: a multiple of the batch, 2");
    refused(elsa::from_opencv<float>("q", mat(5, 8, 5, 1, 40), 4, 0), "q: 5 rows");
    refused(elsa::from_opencv<float>("q", mat(5, 8, 5, 1, 40), 3), "q: rows of 32 bytes; allowed: a multiple of 3");
    refused(elsa::from_opencv<float>("q", mat(5, 8, 5, 1, 40), 0), "q: rows of 32 bytes");
    refused(elsa::from_opencv<float>("q", mat(5, 8, 5, 1, 42)), "q: pitch of 42 bytes; allowed: a multiple of 4");
    refused(elsa::from_opencv<float>("q", mat(5, 8, 5, 1, 28)), "q: pitch of 28 bytes");
    refused(elsa::from_opencv<float>("q", cv::cuda::GpuMat(0, 0, 5, 1, nullptr, 0)), "q: null");
}

void dlpack() {
    float memory[64];
    int64_t shape[] = {2, 3, 4, 2, 1}, strides[] = {24, 8, 2, 1, 1};
    const auto of = [&](int rank) { return dltensor(memory, rank, shape, strides); };
    DLTensor tensor = of(4);
    const elsa_view dense = {{2, 3, 4, 2}, {24, 8, 2, 1}}, tokens_first = {{2, 4, 3, 2}, {24, 2, 8, 1}};
    CHECK(same(elsa::from_dlpack<float>("k", tensor).value().view(), dense));
    CHECK(same(elsa::from_dlpack<float>("k", tensor, ELSA_LAYOUT_BNHD).value().view(), tokens_first));
    tensor.strides = nullptr;
    CHECK(same(elsa::from_dlpack<float>("k", tensor).value().view(), dense));
    // Heads, tokens and elements, and tokens and elements.
    const elsa_view three = {{1, 2, 3, 4}, {0, 12, 4, 1}}, two = {{1, 1, 2, 3}, {0, 0, 3, 1}};
    tensor.ndim = 3;
    CHECK(same(elsa::from_dlpack<float>("k", tensor).value().view(), three));
    for (const elsa_layout layout : {ELSA_LAYOUT_BHND, ELSA_LAYOUT_BNHD}) {
        tensor.ndim = 2;
        CHECK(same(elsa::from_dlpack<float>("k", tensor, layout).value().view(), two));
    }
    tensor = of(4);
    refused(elsa::from_dlpack<float>("k", tensor, ELSA_LAYOUT_QKV), "k: layout 2; allowed: ELSA_LAYOUT_BHND");
    const std::string single = "k: elements of code 2 with 32 bits and 1 lanes; allowed: ";
    refused(elsa::from_dlpack<elsa::f16>("k", tensor), single + "code 2 with 16");
    refused(elsa::from_dlpack<elsa::bf16>("k", tensor), single + "code 4 with 16");
    tensor.dtype.lanes = 2;
    refused(elsa::from_dlpack<float>("k", tensor), "k: elements of code 2 with 32 bits and 2 lanes");
    tensor = of(4);
    tensor.device.device_type = kDLCPU;
    refused(elsa::from_dlpack<float>("k", tensor), "k: device type 1; allowed: 2, 3 or 13");
    for (const DLDeviceType type : {kDLCUDAHost, kDLCUDAManaged}) {
        tensor.device.device_type = type;
        CHECK(elsa::from_dlpack<float>("k", tensor).ok());
    }
    refused(elsa::from_dlpack<float>("k", of(1)), "k: rank 1; allowed: 2, 3 or 4");
    refused(elsa::from_dlpack<float>("k", of(5)), "k: rank 5");
    strides[3] = 2;
    refused(elsa::from_dlpack<float>("k", of(4)), "k: stride 2 along axis 3; allowed: 1; copy the tensor");
    strides[3] = 1;
    strides[1] = -8;
    refused(elsa::from_dlpack<float>("k", of(4)), "k: stride -8 along axis 1; allowed: 0 or more");
    // The stride of an axis of length 1 has no meaning.
    shape[1] = 1;
    CHECK(elsa::from_dlpack<float>("k", of(4)).value().size() == 24 + 3 * 2 + 2);
    tensor = of(4);
    tensor.data = nullptr;
    refused(elsa::from_dlpack<float>("k", tensor), "k: null");
}

void tensorrt() {
    float memory[64];
    void *bindings[] = {nullptr, memory};
    nvinfer1::IExecutionContext context;
    context.shape = {2, {3, 4}};
    context.strides = {2, {8, 1}};
    context.address = memory;
    const elsa_view view = {{1, 1, 3, 4}, {0, 0, 8, 1}};
    CHECK(same(bound<float>(context, bindings).value().view(), view));
    refused(bound<float>(context, bindings, "other"), "v: binding other; allowed: a binding of the engine");
    refused(bound<elsa::f16>(context, bindings), "v: elements of data type 0; allowed: 1");
    refused(bound<elsa::bf16>(context, bindings), "v: elements of data type 0; allowed: 7");
    context.engine.vectorized = 1;
    refused(bound<float>(context, bindings), "v: elements of data type 0 in a vectorised format");
    context.engine.vectorized = -1;
    context.engine.type = nvinfer1::DataType::kHALF;
    CHECK(bound<elsa::f16>(context, bindings).ok());
    context.engine.type = nvinfer1::DataType::kFLOAT;
    context.shape.d[0] = -1;
    refused(bound<float>(context, bindings), "v: length -1 along axis 0; allowed: a length that is set");
    context.shape.d[0] = 3;
    context.address = bindings[1] = nullptr;
    refused(bound<float>(context, bindings), "v: null");
}

void nvbufsurface() {
    float memory[64];
    CUeglFrame image = picture(memory);
    NvBufSurfaceParams list[1] = {};
    NvBufSurface surface = {1, list};
    const auto map = [&] { return elsa::nvbuf_frame::map("out", surface); };
    refused(map(), "out: NvBufSurfaceMapEglImage failed", ELSA_STATUS_DEVICE);
    refused(elsa::nvbuf_frame::map("out", surface, 1), "out: surface 1; allowed: below 1");
    list[0].dataPtr = &image;
    image.planeCount = 0;
    refused(map(), "out: cuGraphicsEGLRegisterImage returned 1", ELSA_STATUS_DEVICE);
    CHECK(egl_images == 0 && graphics_resources == 0);
    image.planeCount = 1;
    image.frameType = CU_EGL_FRAME_TYPE_ARRAY;
    refused(map(), "out: a frame of arrays; allowed: a surface with NVBUF_LAYOUT_PITCH");
    CHECK(egl_images == 0 && graphics_resources == 0);
    image.frameType = CU_EGL_FRAME_TYPE_PITCH;
    // Four bytes of a pixel may be an element.
    image.cuFormat = CU_AD_FORMAT_UNSIGNED_INT8;
    image.numChannels = 4;
    elsa::nvbuf_frame frame = map().value(), other;
    const elsa_view view = {{1, 1, N, WIDTH}, {N * STEP, WIDTH, STEP, 1}};
    CHECK(same(frame.tensor<float>("out").value().view(), view));
    refused(frame.tensor<float>("out", 3), "out: rows of 128 bytes; allowed: a multiple of 3 heads");
    other = std::move(frame);
    CHECK(egl_images == 1 && graphics_resources == 1);
    frame = elsa::nvbuf_frame();
    CHECK(egl_images == 1 && graphics_resources == 1);
    other = elsa::nvbuf_frame();
    CHECK(egl_images == 0 && graphics_resources == 0);
    image.cuFormat = CU_AD_FORMAT_UNSIGNED_INT16;
    frame = map().value();
    refused(frame.tensor<float>("out"), "out: format 2; allowed: CU_AD_FORMAT_UNSIGNED_INT8");
}

} // namespace

int main() {
    void *context = nullptr, *popped = nullptr;
    open_driver();
    fill_all();
    elsa::engine_options options;
    options.backend = ELSA_BACKEND_CUDA;
    options.fallback = ELSA_FALLBACK_FAIL;
    const elsa::engine engine = elsa::engine::create(options).value();
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxPushCurrent(context) == 0);
    in_place(engine);
    opencv();
    dlpack();
    tensorrt();
    nvbufsurface();
    CHECK(cuCtxPopCurrent(&popped) == 0 && cuDevicePrimaryCtxRelease(0) == 0);
    std::printf("%d checks\n", checks);
    return 0;
}
