// Parts of the example against their definitions in double precision, on the CPU and, if asked, on a GPU, whose
// preparation of a picture must have the bits of the CPU's.

#include "allocations.hpp"
#include "driver.hpp"
#include "error.hpp"
#include "modules.hpp"
#include "network.hpp"
#include "prepare.hpp"
#include "source.hpp"
#include "surface.hpp"
#include "video.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

using camera::Frame;
using camera::Standard;

std::size_t passed = 0, failed = 0;

void check(bool holds, const std::string &what) {
    (holds ? passed : failed) += 1;
    if (!holds) {
        std::fprintf(stderr, "failed: %s\n", what.c_str());
    }
}

std::uint32_t state = 1;
std::uint32_t random_bits() {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}
float random_float() { return static_cast<float>(random_bits() % 20001) / 10000.0f - 1.0f; }

std::vector<float> random_floats(std::size_t count) {
    std::vector<float> all(count);
    for (float &x : all) {
        x = random_float();
    }
    return all;
}

template <class T>
Address address_of(const T *memory) {
    return static_cast<Address>(reinterpret_cast<std::uintptr_t>(memory));
}

// ---- The preparation of a picture

/// A picture, and the network's part that prepares it.
struct Case {
    int format, width, height;
    Standard standard;
    int channels, patch, grid, outputs, gap;
};

/// The memory of a case.
struct Data {
    std::vector<std::uint8_t> bytes;
    std::vector<float> start, weight, levels;
    std::size_t tokens;
};

int rows_of(const Case &c) { return c.format == camera::FORMAT_NV12 ? c.height + (c.height + 1) / 2 : c.height; }

int pitch_of(const Case &c) {
    const int bytes[3] = {3 * c.width, 4 * c.width, (c.width + 1) / 2 * 2};
    return c.gap + bytes[c.format];
}

Frame frame_of(const Case &c, Address at) {
    const int pitch = pitch_of(c);
    if (c.format != camera::FORMAT_NV12) {
        return camera::pixels(at, pitch, c.width, c.height, c.format);
    }
    const Address pairs = at + static_cast<Address>(pitch) * static_cast<Address>(c.height);
    return camera::nv12(at, pairs, pitch, pitch, c.width, c.height, c.standard);
}

Data data_of(const Case &c) {
    Data data;
    data.bytes.resize(static_cast<std::size_t>(pitch_of(c)) * static_cast<std::size_t>(rows_of(c)));
    for (std::uint8_t &byte : data.bytes) {
        byte = static_cast<std::uint8_t>(random_bits());
    }
    data.tokens = static_cast<std::size_t>(1 + c.grid * c.grid);
    const std::size_t outputs = static_cast<std::size_t>(c.outputs);
    data.start = random_floats(data.tokens * outputs);
    data.weight = random_floats(static_cast<std::size_t>(c.channels * c.patch * c.patch) * outputs);
    data.levels = random_floats(static_cast<std::size_t>(2 * c.channels));
    for (int i = 0; i < c.channels; ++i) {
        data.levels[static_cast<std::size_t>(i)] = (2.0f + random_float()) / 255.0f;
    }
    return data;
}

camera::Prepare call_of(const Case &c) {
    camera::Prepare call = camera::Prepare();
    call.width = c.outputs;
    call.channels = c.channels;
    call.patch = c.patch;
    call.grid = c.grid;
    return call;
}

double limited(double x) { return std::min(255.0, std::max(0.0, x)); }

/// A channel of a pixel by the definitions of the standards: with the weights of red and blue in luma, Kr and Kb.
double pixel(const Case &c, const Data &data, int channel, int y, int x) {
    const std::size_t pitch = static_cast<std::size_t>(pitch_of(c));
    const auto byte = [&](int row, int at) {
        return double(data.bytes[static_cast<std::size_t>(row) * pitch + static_cast<std::size_t>(at)]);
    };
    double rgb[3];
    if (c.format == camera::FORMAT_NV12) {
        const bool full = c.standard == Standard::bt601_full;
        const double kr = c.standard == Standard::bt709_video ? 0.2126 : 0.299;
        const double kb = c.standard == Standard::bt709_video ? 0.0722 : 0.114, kg = 1.0 - kr - kb;
        const double luma = full ? byte(y, x) / 255.0 : (byte(y, x) - 16.0) / 219.0, steps = full ? 255.0 : 224.0;
        const double cb = (byte(c.height + y / 2, x / 2 * 2) - 128.0) / steps;
        const double cr = (byte(c.height + y / 2, x / 2 * 2 + 1) - 128.0) / steps;
        const double red = luma + 2.0 * (1.0 - kr) * cr, blue = luma + 2.0 * (1.0 - kb) * cb;
        rgb[0] = limited(255.0 * red);
        rgb[1] = limited(255.0 * (luma - kr * (red - luma) / kg - kb * (blue - luma) / kg));
        rgb[2] = limited(255.0 * blue);
    } else {
        const int bytes = c.format == camera::FORMAT_RGB ? 3 : 4;
        for (int i = 0; i < 3; ++i) {
            rgb[i] = byte(y, bytes * x + i);
        }
    }
    return c.channels == 1 ? (77.0 * rgb[0] + 150.0 * rgb[1] + 29.0 * rgb[2]) / 256.0 : rgb[channel];
}

/// The bilinear value at the centre of a cell.
double cell(const Case &c, const Data &data, int channel, int y, int x) {
    const int cells = c.grid * c.patch;
    const auto place = [cells](int at, int pixels) {
        return std::min(double(pixels - 1), std::max(0.0, (at + 0.5) * pixels / cells - 0.5));
    };
    const double py = place(y, c.height), px = place(x, c.width);
    const int y0 = int(py), x0 = int(px), y1 = std::min(y0 + 1, c.height - 1), x1 = std::min(x0 + 1, c.width - 1);
    const double fy = py - y0, fx = px - x0;
    return (1 - fy) * ((1 - fx) * pixel(c, data, channel, y0, x0) + fx * pixel(c, data, channel, y0, x1)) +
           fy * ((1 - fx) * pixel(c, data, channel, y1, x0) + fx * pixel(c, data, channel, y1, x1));
}

/// Compares tokens with their definition: relative to the sum of the magnitudes of the terms, the error is at most
/// 1e-6.
bool as_defined(const Case &c, const Data &data, const std::vector<float> &tokens) {
    const int area = c.patch * c.patch;
    const std::size_t outputs = static_cast<std::size_t>(c.outputs);
    bool good = true;
    for (int token = 0; token <= c.grid * c.grid; ++token) {
        std::vector<double> inputs(token == 0 ? 0 : static_cast<std::size_t>(c.channels * area));
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            const int channel = int(i) / area, inside = int(i) % area, patch = token - 1;
            const double value = cell(c, data, channel, patch / c.grid * c.patch + inside / c.patch,
                                      patch % c.grid * c.patch + inside % c.patch);
            inputs[i] = value * double(data.levels[static_cast<std::size_t>(channel)]) +
                        double(data.levels[static_cast<std::size_t>(c.channels + channel)]);
        }
        for (std::size_t o = 0; o < outputs; ++o) {
            const std::size_t at = static_cast<std::size_t>(token) * outputs + o;
            double sum = double(data.start[at]), size = 1.0 + std::fabs(sum);
            for (std::size_t i = 0; i < inputs.size(); ++i) {
                const double term = inputs[i] * double(data.weight[i * outputs + o]);
                sum += term;
                size += std::fabs(term);
            }
            good = good && std::fabs(double(tokens[at]) - sum) <= 1e-6 * size;
        }
    }
    return good;
}

std::vector<Case> cases() {
    const int rgb = camera::FORMAT_RGB, rgba = camera::FORMAT_RGBA, yuv = camera::FORMAT_NV12;
    const Standard full = Standard::bt601_full, video = Standard::bt601_video, hd = Standard::bt709_video;
    return {
        {rgb, 8, 8, full, 1, 2, 4, 48, 0},     {rgb, 1, 1, full, 3, 2, 3, 5, 0},
        {rgb, 3, 5, full, 3, 4, 2, 130, 7},    {rgb, 97, 61, full, 1, 3, 5, 33, 0},
        {rgba, 64, 48, full, 3, 5, 3, 48, 0},  {rgba, 2, 31, full, 1, 2, 4, 64, 12},
        {yuv, 8, 8, full, 1, 2, 4, 48, 0},     {yuv, 1, 1, video, 3, 2, 3, 8, 2},
        {yuv, 7, 9, hd, 3, 3, 2, 20, 6},       {yuv, 64, 33, video, 3, 4, 4, 96, 0},
        {yuv, 63, 40, hd, 1, 2, 4, 48, 64},    {yuv, 96, 54, full, 3, 16, 2, 192, 0},
    };
}

std::string name_of(const Case &c) {
    return "format " + std::to_string(c.format) + ", " + std::to_string(c.width) + " x " + std::to_string(c.height) +
           ", " + std::to_string(c.channels) + " channels, patch " + std::to_string(c.patch);
}

std::vector<float> on_cpu(const Case &c, const Data &data) {
    std::vector<float> tokens(data.start.size(), std::nanf(""));
    const Frame frame = frame_of(c, address_of(data.bytes.data()));
    camera::Prepare call = call_of(c);
    call.frame = address_of(&frame);
    call.start = address_of(data.start.data());
    call.weight = address_of(data.weight.data());
    call.levels = address_of(data.levels.data());
    call.tokens = address_of(tokens.data());
    camera::prepare(call);
    return tokens;
}

void preparation() {
    for (const Case &c : cases()) {
        const Data data = data_of(c);
        check(as_defined(c, data, on_cpu(c, data)), "preparation, " + name_of(c));
    }
}

// ---- Pictures

void colours() {
    // Black, white and red of video. Eight bits hold red within one and a half steps.
    const std::uint8_t luma[3] = {16, 235, 81}, pairs[3][2] = {{128, 128}, {128, 128}, {90, 240}};
    const float wanted[3][3] = {{0, 0, 0}, {255, 255, 255}, {255, 0, 0}};
    for (int i = 0; i < 3; ++i) {
        const Frame frame = camera::nv12(address_of(&luma[i]), address_of(pairs[i]), 1, 2, 1, 1, Standard::bt601_video);
        const std::vector<float> start(8), weight = {1, 0, 0, 0, 1, 0, 0, 0, 1}, levels = {1, 1, 1, 0, 0, 0};
        std::vector<float> tokens(6);
        camera::Prepare call = camera::Prepare();
        call.frame = address_of(&frame);
        call.start = address_of(start.data());
        call.weight = address_of(weight.data());
        call.levels = address_of(levels.data());
        call.tokens = address_of(tokens.data());
        call.width = call.channels = 3;
        call.patch = call.grid = 1;
        camera::prepare(call);
        for (std::size_t k = 0; k < 3; ++k) {
            check(std::fabs(tokens[3 + k] - wanted[i][k]) <= 1.5f, "colour " + std::to_string(i));
        }
    }
}

void conversions() {
    // Grey keeps its value; 3 x 3 pixels have chroma at the borders too.
    std::vector<std::uint8_t> grey(27);
    for (std::size_t i = 0; i < grey.size(); ++i) {
        grey[i] = static_cast<std::uint8_t>(i / 3 * 28);
    }
    const std::vector<std::uint8_t> planes = camera::converted(grey, 3, 3, camera::FORMAT_NV12);
    check(planes.size() == 9 + 8 && camera::bytes_of(camera::FORMAT_NV12, 3, 3) == 17, "bytes of NV12");
    for (std::size_t i = 0; i < planes.size(); ++i) {
        check(planes[i] == (i < 9 ? grey[3 * i] : 128), "grey in NV12");
    }
    const std::vector<std::uint8_t> red = camera::converted({255, 0, 0}, 1, 1, camera::FORMAT_NV12);
    check(red == std::vector<std::uint8_t>({76, 85, 255}), "red in NV12");
    check(camera::converted({1, 2, 3}, 1, 1, camera::FORMAT_RGBA) == std::vector<std::uint8_t>({1, 2, 3, 255}), "RGBA");
    // Two rows of two pixels, with a gap of one byte.
    const std::uint8_t yuyv[] = {1, 10, 2, 20, 99, 3, 13, 4, 30, 99};
    std::uint8_t made[6];
    camera::nv12_of_yuyv(yuyv, 5, 2, 2, made);
    const std::uint8_t wanted[6] = {1, 2, 3, 4, 12, 25};
    check(std::memcmp(made, wanted, sizeof wanted) == 0, "YUYV to NV12");
    bool refused = false;
    try {
        camera::format_named("yuv");
    } catch (const vision::Error &error) {
        refused = std::string(error.what()) == "--format: yuv; allowed: rgb, rgba, nv12";
    }
    check(refused, "an unknown format");
    refused = false;
    try {
        camera::video("/dev/null");
    } catch (const vision::Error &error) {
        const std::string what = error.what();
        refused = error.fault() == vision::Fault::request && what.find("V4L2") != std::string::npos;
    }
    check(refused, "a device that is no camera");
}

void synthetic() {
    for (const int format : {camera::FORMAT_RGB, camera::FORMAT_RGBA, camera::FORMAT_NV12}) {
        camera::Synthetic source(format, 21, 5);
        std::vector<std::uint8_t> memory(source.bytes() + 1, 77);
        const camera::Shared room = {memory.data(), address_of(memory.data())};
        const std::uint64_t before = camera::allocated();
        const camera::Shot shot = source.take(3, room);
        const bool none = camera::allocated() == before;
        check(none, "a picture allocates nothing");
        check(memory.back() == 77 && shot.frame.width == 21 && shot.label == -1, "a synthetic picture");
        const std::size_t step = format == camera::FORMAT_RGB ? 3 : format == camera::FORMAT_RGBA ? 4 : 1;
        for (std::size_t x = 0; x < 21; ++x) {
            check(memory[(2 * 21 + x) * step] == (x >= 7 && x < 10 ? 235 : 16), "the bar");
        }
    }
}

void surfaces() {
#ifdef CAMERA_SURFACES
    CUeglFrame mapped = CUeglFrame();
    mapped.frame.pPitch[0] = &mapped;
    mapped.frame.pPitch[1] = &passed;
    mapped.width = 640;
    mapped.height = 480;
    mapped.pitch = 768;
    mapped.planeCount = 2;
    mapped.numChannels = 1;
    mapped.frameType = CU_EGL_FRAME_TYPE_PITCH;
    mapped.cuFormat = CU_AD_FORMAT_UNSIGNED_INT8;
    const Frame frame = camera::frame_of(mapped, Standard::bt601_video);
    check(frame.planes[0] == address_of(&mapped) && frame.planes[1] == address_of(&passed), "planes of a surface");
    check(frame.format == camera::FORMAT_NV12 && frame.width == 640 && frame.height == 480, "a surface of NV12");
    check(frame.pitches[0] == 768 && frame.pitches[1] == 768 && frame.luma_offset == 16.0f, "pitches of a surface");
    mapped.planeCount = 1;
    mapped.numChannels = 4;
    check(camera::frame_of(mapped, Standard::bt601_video).format == camera::FORMAT_RGBA, "a surface of RGBA");
    mapped.cuFormat = CU_AD_FORMAT_FLOAT;
    bool refused = false;
    try {
        camera::frame_of(mapped, Standard::bt601_video);
    } catch (const vision::Error &) {
        refused = true;
    }
    check(refused, "a surface of other elements");
#endif
}

// ---- The kernels

void kernels(camera::Driver &driver) {
    const auto put = [&driver](const void *from, std::size_t bytes) {
        const Address at = driver.allocate(bytes);
        driver.upload(at, from, bytes);
        return at;
    };
    const auto floats = [&put](const std::vector<float> &values) { return put(values.data(), values.size() * 4); };
    const auto result = [](const camera::Shared &from, std::size_t count) {
        std::vector<float> values(count);
        std::memcpy(values.data(), from.data, count * 4);
        return values;
    };
    void *prepare = driver.kernel(camera::modules::prepare, "camera_prepare__sm53");
    for (const Case &c : cases()) {
        const Data data = data_of(c);
        const Frame frame = frame_of(c, put(data.bytes.data(), data.bytes.size()));
        const camera::Shared tokens = driver.share(data.start.size() * 4);
        camera::Prepare call = call_of(c);
        call.frame = put(&frame, sizeof frame);
        call.start = floats(data.start);
        call.weight = floats(data.weight);
        call.levels = floats(data.levels);
        call.tokens = tokens.address;
        driver.launch(prepare, data.tokens, 128, call);
        driver.wait();
        const std::vector<float> found = result(tokens, data.start.size()), wanted = on_cpu(c, data);
        check(std::memcmp(found.data(), wanted.data(), 4 * found.size()) == 0, "the CPU's bits, " + name_of(c));
        check(as_defined(c, data, found), "preparation on the GPU, " + name_of(c));
    }
    void *normalise = driver.kernel(camera::modules::normalise, "camera_normalise__sm53");
    for (const std::size_t width : {1u, 31u, 48u, 192u}) {
        const std::size_t rows = 5;
        const std::vector<float> x = random_floats(rows * width);
        const std::vector<float> weight = random_floats(width), bias = random_floats(width);
        const camera::Shared y = driver.share(rows * width * 4);
        camera::Normalise call = camera::Normalise();
        call.x = floats(x);
        call.y = y.address;
        call.weight = floats(weight);
        call.bias = floats(bias);
        call.width = static_cast<int>(width);
        call.epsilon = vision::norm_epsilon;
        driver.launch(normalise, rows, 32, call);
        driver.wait();
        const std::vector<float> found = result(y, rows * width);
        bool good = true;
        for (std::size_t row = 0; row < rows; ++row) {
            double mean = 0.0, squares = 0.0;
            for (std::size_t i = 0; i < width; ++i) {
                mean += double(x[row * width + i]) / double(width);
            }
            for (std::size_t i = 0; i < width; ++i) {
                squares += std::pow(double(x[row * width + i]) - mean, 2.0);
            }
            const double factor = 1.0 / std::sqrt(squares / double(width) + double(vision::norm_epsilon));
            for (std::size_t i = 0; i < width; ++i) {
                const double centred = double(x[row * width + i]) - mean;
                const double wanted = centred * factor * double(weight[i]) + double(bias[i]);
                good = good && std::fabs(double(found[row * width + i]) - wanted) <= 1e-5;
            }
        }
        check(good, "normalisation of rows of " + std::to_string(width));
    }
    void *map = driver.kernel(camera::modules::map, "camera_map__sm53");
    for (int flags = 0; flags < 4; ++flags) {
        for (const std::size_t outputs : {1u, 48u, 129u}) {
            const std::size_t rows = 3, inputs = 37;
            const std::vector<float> x = random_floats(rows * inputs), bias = random_floats(outputs);
            const std::vector<float> weight = random_floats(inputs * outputs), old = random_floats(rows * outputs);
            const camera::Shared y = driver.share(rows * outputs * 4);
            std::memcpy(y.data, old.data(), rows * outputs * 4);
            camera::Map call = camera::Map();
            call.x = floats(x);
            call.weight = floats(weight);
            call.bias = floats(bias);
            call.y = y.address;
            call.rows = static_cast<int>(rows);
            call.inputs = static_cast<int>(inputs);
            call.outputs = static_cast<int>(outputs);
            call.flags = flags;
            if (outputs == 48) {
                // The products exist: the map reads neither x nor the weights.
                std::vector<float> sums(rows * outputs);
                for (std::size_t at = 0; at < sums.size(); ++at) {
                    for (std::size_t i = 0; i < inputs; ++i) {
                        sums[at] += x[at / outputs * inputs + i] * weight[i * outputs + at % outputs];
                    }
                }
                call.sums = floats(sums);
                call.x = call.weight = 0;
            }
            driver.launch(map, (rows * outputs + 127) / 128, 128, call);
            driver.wait();
            const std::vector<float> found = result(y, rows * outputs);
            bool good = true;
            for (std::size_t at = 0; at < found.size(); ++at) {
                const std::size_t row = at / outputs, o = at % outputs;
                double sum = double(bias[o]);
                for (std::size_t i = 0; i < inputs; ++i) {
                    sum += double(x[row * inputs + i]) * double(weight[i * outputs + o]);
                }
                sum = (flags & camera::MAP_GELU) != 0 ? sum * 0.5 * (1.0 + std::erf(sum / std::sqrt(2.0))) : sum;
                sum += (flags & camera::MAP_ADD) != 0 ? double(old[at]) : 0.0;
                good = good && std::fabs(double(found[at]) - sum) <= 1e-5;
            }
            check(good, "a map with flags " + std::to_string(flags) + " to " + std::to_string(outputs) + " outputs");
        }
    }
    bool refused = false;
    try {
        driver.kernel(camera::modules::map, "no_such_kernel");
    } catch (const vision::Error &error) {
        refused = std::string(error.what()).find("CUDA_ERROR_NOT_FOUND") != std::string::npos;
    }
    check(refused, "a kernel that the module lacks");
}

} // namespace

int main(int count, char **words) {
    const bool cuda = count == 2 && std::string(words[1]) == "cuda";
    if (count > 2 || (count == 2 && !cuda)) {
        std::fprintf(stderr, "usage: camera-tests [cuda]\n");
        return 2;
    }
    try {
        preparation();
        colours();
        conversions();
        synthetic();
        surfaces();
        if (cuda) {
            camera::Driver driver(0);
            kernels(driver);
        }
    } catch (const std::exception &error) {
        check(false, error.what());
    }
    std::printf("%zu passed, %zu failed\n", passed, failed);
    return failed == 0 && passed > 0 ? 0 : 1;
}
