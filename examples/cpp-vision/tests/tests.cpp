// Parts of the pipeline against their definitions in double precision, and files that must be refused.

#include "error.hpp"
#include "layers.hpp"
#include "model.hpp"
#include "picture.hpp"
#include "safetensors.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <vector>

namespace {

std::size_t passed = 0, failed = 0;
std::size_t allocations = 0;

void check(bool holds, const std::string &what) {
    (holds ? passed : failed) += 1;
    if (!holds) {
        std::fprintf(stderr, "failed: %s\n", what.c_str());
    }
}

/// Returns the text of the request error that `call` throws; empty if it throws none.
std::string refusal(const std::function<void()> &call) {
    try {
        call();
    } catch (const vision::Error &error) {
        return error.fault() == vision::Fault::request ? error.what() : "";
    }
    return "";
}

std::vector<std::uint8_t> file_of(const std::string &header, std::size_t data) {
    std::vector<std::uint8_t> bytes(8);
    for (unsigned i = 0; i < 8; ++i) {
        bytes[i] = static_cast<std::uint8_t>(std::uint64_t(header.size()) >> (8 * i));
    }
    bytes.insert(bytes.end(), header.begin(), header.end());
    bytes.resize(bytes.size() + data);
    return bytes;
}

std::uint32_t state = 1;
std::uint32_t random_bits() {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

void bad_files(const std::vector<std::uint8_t> &good) {
    const std::string tensor = "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}";
    vision::SafeTensors fine("fine", file_of("{\"__metadata__\":{\"heads\":\"4\"}," + tensor + "}", 8));
    check(fine.f32("a", {2}) == std::vector<float>(2) && fine.number("heads") == 4, "a file that is right");
    check(refusal([&] { fine.f32("a", {3}); }) == "model: tensor a: F32 [2]; allowed: finite F32 [3]", "shape");
    check(!refusal([&] { fine.f32("b", {2}); }).empty(), "absent tensor");
    check(!refusal([&] { fine.number("x"); }).empty(), "absent metadata");
    const struct {
        const char *header;
        std::size_t data;
    } wrong[] = {
        {"", 0},
        {"[]", 0},
        {"{", 0},
        {"{}", 1},
        {"{\"a\":3}", 0},
        {"{\"__metadata__\":{\"heads\":4}}", 0},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8},
        {"{\"a\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8},
        // 2^62 elements of 4 bytes are 0 modulo 2^64.
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[2,5]}}",
         5},
    };
    for (const auto &w : wrong) {
        check(!refusal([&] { vision::SafeTensors("bad", file_of(w.header, w.data)); }).empty(), w.header);
    }
    for (const std::size_t length : {0u, 7u}) {
        check(!refusal([&] { vision::SafeTensors("bad", std::vector<std::uint8_t>(length)); }).empty(), "short file");
    }
    check(!refusal([&] { vision::SafeTensors("bad", std::vector<std::uint8_t>(64, 0xff)); }).empty(), "long header");
    check(!refusal([] { vision::SafeTensors::open("no/such/file"); }).empty(), "no file");
    // Damaged copies are refused or read, without any other effect.
    const std::size_t rounds = 2000, header = std::min<std::size_t>(good.size(), 4096);
    std::size_t refused = 0;
    for (std::size_t i = 0; i < rounds; ++i) {
        std::vector<std::uint8_t> bytes = good;
        bytes[random_bits() % header] = static_cast<std::uint8_t>(random_bits());
        if (i % 4 == 0) {
            bytes.resize(random_bits() % good.size());
        }
        refused += !refusal([&] { vision::SafeTensors("damaged", bytes); }).empty();
    }
    check(refused > rounds / 4, "damaged files are refused");
}

void areas() {
    const std::size_t sizes[][2] = {{8, 8}, {1, 1}, {3, 5}, {16, 8}, {13, 29}, {100, 7}};
    for (const auto &size : sizes) {
        vision::Picture picture;
        picture.width = size[0];
        picture.height = size[1];
        for (std::size_t i = 0; i < size[0] * size[1]; ++i) {
            picture.grey.push_back(static_cast<std::uint8_t>(i * i * 31 + i * 7));
        }
        std::array<float, vision::side * vision::side> cells;
        vision::reduce(picture, cells);
        const auto share = [](std::size_t c, std::size_t n, std::size_t p) {
            const double cell = double(n) / double(vision::side);
            return std::max(0.0, std::min((double(c) + 1) * cell, double(p) + 1) - std::max(double(c) * cell, double(p)));
        };
        double worst = 0.0;
        for (std::size_t cell = 0; cell < cells.size(); ++cell) {
            double sum = 0.0, area = 0.0;
            for (std::size_t i = 0; i < picture.grey.size(); ++i) {
                const double a = share(cell / vision::side, size[1], i / size[0]) *
                                 share(cell % vision::side, size[0], i % size[0]);
                sum += a * picture.grey[i];
                area += a;
            }
            const double error = std::abs(sum / area / 255.0 - double(cells[cell]));
            if (error > worst || std::isnan(error)) worst = error;
        }
        // Three roundings: the sum, and two divisions.
        check(worst <= 2e-7, "areas of " + std::to_string(size[0]) + " x " + std::to_string(size[1]));
    }
}

void layers() {
    const vision::Linear linear({1, 2, 3, 4, 5, 6}, {10, 20});
    std::vector<float> x = {1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 1, -1, 0, 0}, y(10);
    linear.apply(x.data(), 5, y.data());
    check(y == std::vector<float>({11, 24, 16, 35, 12, 25, 13, 26, 9, 16}), "linear map of five rows");
    const vision::Norm norm({2, 2, 2, 2}, {1, 1, 1, 1});
    const float row[] = {300, 500, 300, 500};
    norm.apply(row, 1, y.data());
    check(std::abs(y[0] + 1) < 1e-6f && std::abs(y[1] - 3) < 1e-6f, "layer normalisation");
    float g[] = {0.0f, 1.0f, -1.0f, 10.0f};
    vision::gelu(g, 4);
    check(g[0] == 0.0f && std::abs(g[1] - 0.8413447461f) < 1e-6f && std::abs(g[2] + 0.1586552539f) < 1e-6f &&
              g[3] == 10.0f,
          "GELU");
    std::vector<float> p(3);
    vision::softmax({1000.0f, 1000.0f, -1000.0f}, p);
    check(p == std::vector<float>({0.5f, 0.5f, 0.0f}), "softmax");
}

void network(const vision::SafeTensors &weights) {
    vision::AttentionOptions options;
    options.threads = 1;
    options.backend = "scalar";
    vision::Model plain(weights, options);
    options.probabilities = true;
    vision::Model model(weights, options);
    std::array<float, vision::side * vision::side> cells;
    for (float &cell : cells) {
        cell = static_cast<float>(random_bits() % 256) / 255.0f;
    }
    plain.classify(cells);
    model.classify(cells);
    check(plain.scores() == model.scores(), "a map changes no score");
    const std::vector<float> map = model.map();
    double sum = 0.0;
    for (const float w : map) {
        sum += double(w);
        check(w > 0.0f, "the weight of a patch");
    }
    // The row of the rollout sums to one; its first entry, the class token's own, is at least 2^-blocks and below one.
    check(sum > 0.01 && sum < 0.875 + 1e-5, "the weights of all patches");
    const std::size_t before = allocations;
    plain.classify(cells);
    const bool none = allocations == before;
    check(none, "a frame allocates nothing");
    options.certify = true;
    vision::Model certified(weights, options);
    const elsa_certified proven = certified.classify(cells).attention.certified;
    check(certified.scores() == model.scores(), "a certificate changes no score");
    check(proven.claims != 0 && proven.bound > 0.0 && proven.bound < 0.01, "the bound of a certificate");
    cells[0] = std::nanf("");
    const elsa_certified none_proven = certified.classify(cells).attention.certified;
    check(none_proven.claims == 0 && none_proven.reason[0] != 0, "no bound for NaN");
    options.backend = "abacus";
    check(refusal([&] { vision::Model(weights, options); }) ==
              "--backend: abacus; allowed: auto, scalar, neon, avx2, avx512, cuda",
          "an unknown back end");
}

/// The certificate of several runs is that of the least certain one, in any order.
void certificates() {
    const auto report = [](std::uint32_t claims, double bound) {
        vision::AttentionReport one;
        one.certified.size = sizeof one.certified;
        one.certified.claims = claims;
        one.certified.bound = bound;
        return one;
    };
    const vision::AttentionReport small = report(1, 0.25), large = report(1, 0.5), none = report(0, std::nan(""));
    const auto sum = [](const std::vector<vision::AttentionReport> &reports) {
        vision::AttentionReport all;
        for (const auto &one : reports) {
            all.add(one);
        }
        return all.certified;
    };
    check(sum({small, large}).bound == 0.5 && sum({large, small}).bound == 0.5, "the largest bound");
    check(sum({small, none, large}).claims == 0 && sum({none, small}).claims == 0, "a run without a bound");
}

void maps(const std::string &folder) {
    vision::Picture picture;
    picture.width = 8;
    picture.height = 16;
    picture.grey.assign(8 * 16, 255);
    std::vector<float> weights(16);
    weights[5] = 1.0f;
    const std::string path = folder + "/vision-tests-map.png";
    vision::write_map(path, picture, weights, 4);
    const vision::Picture read = vision::read_picture(path);
    check(read.width == 256 && read.height == 512, "the size of a map");
    check(read.grey[0] == 255 && read.grey[(128 + 1) * 256 + 65] < 200 && read.grey[(128 - 1) * 256 + 65] == 255,
          "the patch of a map");
    std::remove(path.c_str());
    check(!refusal([&] { vision::write_map("no/such/folder/x.png", picture, weights, 4); }).empty(), "no folder");
    check(!refusal([] { vision::read_picture("no-such.png"); }).empty(), "no picture");
}

} // namespace

void *operator new(std::size_t size) {
    ++allocations;
    if (void *memory = std::malloc(size == 0 ? 1 : size)) {
        return memory;
    }
    throw std::bad_alloc();
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }

int main(int count, char **words) {
    if (count != 3) {
        std::fprintf(stderr, "usage: vision-tests MODEL FOLDER\n");
        return 2;
    }
    try {
        const vision::SafeTensors weights = vision::SafeTensors::open(words[1]);
        std::vector<std::uint8_t> bytes;
        if (std::FILE *file = std::fopen(words[1], "rb")) {
            for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) {
                bytes.push_back(static_cast<std::uint8_t>(c));
            }
            std::fclose(file);
        }
        bad_files(bytes);
        areas();
        layers();
        network(weights);
        certificates();
        maps(words[2]);
    } catch (const std::exception &error) {
        check(false, error.what());
    }
    std::printf("%zu passed, %zu failed\n", passed, failed);
    return failed == 0 && passed > 0 ? 0 : 1;
}
