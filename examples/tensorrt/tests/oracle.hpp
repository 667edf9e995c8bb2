// Nodes of type ElsaAttention, their tensors and their results by the definition of attention in double precision.
#ifndef ORACLE_HPP
#define ORACLE_HPP

#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "host.hpp"

namespace oracle {

using namespace nvinfer1;
typedef std::vector<std::size_t> Shape;

// ---- Elements

inline std::uint16_t to_half(float x) {
    // Rounds to nearest, for numbers in the normal range of f16.
    if (x == 0) {
        return 0;
    }
    if (std::isinf(x)) {
        return x < 0 ? 0xfc00 : 0x7c00;
    }
    int exponent = 0;
    const double fraction = std::frexp(std::fabs(static_cast<double>(x)), &exponent);
    const long units = std::lrint(std::ldexp(fraction, 11));
    const long biased = exponent + 14;
    CHECK(biased > 0 && biased < 30);
    return static_cast<std::uint16_t>((x < 0 ? 0x8000 : 0) + (biased << 10) + units - 1024);
}

inline double of_half(std::uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 31  ? std::numeric_limits<double>::infinity()
                        : exponent == 0 ? std::ldexp(fraction, -24)
                                        : std::ldexp(1024 + fraction, exponent - 25);
    return (bits & 0x8000) != 0 ? -size : size;
}

// A tensor of the host, with the values of its elements.
struct Tensor {
    DataType type = DataType::kFLOAT;
    Shape shape;
    std::vector<double> values;

    std::vector<char> bytes() const {
        std::vector<char> to;
        for (const double x : values) {
            const float single = static_cast<float>(x);
            const std::uint16_t half = type == DataType::kHALF ? to_half(single) : 0;
            const char flag = x != 0;
            const char *from = type == DataType::kFLOAT  ? reinterpret_cast<const char *>(&single)
                               : type == DataType::kHALF ? reinterpret_cast<const char *>(&half)
                                                         : &flag;
            to.insert(to.end(), from, from + (type == DataType::kFLOAT ? 4 : type == DataType::kHALF ? 2 : 1));
        }
        return to;
    }
};

inline std::size_t volume(const Shape &shape) {
    std::size_t count = 1;
    for (const std::size_t axis : shape) {
        count *= axis;
    }
    return count;
}

inline Tensor noise(DataType type, Shape shape, unsigned seed, double size = 1) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> draw(0.01, size);
    Tensor made{type, std::move(shape), {}};
    for (std::size_t i = 0; i < volume(made.shape); ++i) {
        const float x = static_cast<float>((random() & 1) != 0 ? draw(random) : -draw(random));
        made.values.push_back(type == DataType::kHALF ? of_half(to_half(x)) : static_cast<double>(x));
    }
    return made;
}

// ---- A node and its definition

struct Node {
    std::size_t batch = 2, heads = 2, kv_heads = 2, queries = 12, keys = 12, dim = 16, value_dim = 16;
    int rank = 4;
    bool packed = false, causal = false, align_last = false;
    double scale = 0, softcap = 0;
    std::array<int, 2> window{{-1, -1}}, grid{{0, 0}}, picture{{0, 0}}, shift{{0, 0}};
    DataType type = DataType::kFLOAT;
    Tensor mask, table;  // absent without a shape

    host::Fields fields() const {
        host::Fields made;
        const auto pair = [&](const char *name, const std::array<int, 2> &x) { made.whole(name, {x[0], x[1]}); };
        if (rank == 3) {
            made.whole("num_heads", {static_cast<int>(heads)});
        }
        if (kv_heads != heads) {
            made.whole("kv_num_heads", {static_cast<int>(kv_heads)});
        }
        if (packed) {
            made.whole("packed", {1});
        }
        if (causal) {
            made.whole("is_causal", {1});
        }
        if (align_last) {
            made.whole("align_last", {1});
        }
        if (scale != 0) {
            made.real("scale", static_cast<float>(scale));
        }
        if (softcap != 0) {
            made.real("softcap", static_cast<float>(softcap));
        }
        if (window[0] >= 0 || window[1] >= 0) {
            pair("window", window);
        }
        if (grid[0] != 0) {
            pair("grid", grid);
        }
        if (picture[0] != 0) {
            pair("picture", picture);
        }
        if (shift[0] != 0 || shift[1] != 0) {
            pair("shift", shift);
        }
        return made;
    }
};

// Returns Q, K or V as [batch, heads, tokens, dim] for any layout of the inputs.
struct Data {
    Tensor q, k, v;
};

inline Data data(const Node &n, unsigned seed = 1) {
    return {noise(n.type, {n.batch, n.heads, n.queries, n.dim}, seed), noise(n.type, {n.batch, n.kv_heads, n.keys, n.dim}, seed + 1),
            noise(n.type, {n.batch, n.kv_heads, n.keys, n.value_dim}, seed + 2)};
}

// Converts [batch, heads, tokens, dim] to [batch, tokens, heads * dim].
inline Tensor flat(const Tensor &t) {
    const std::size_t b = t.shape[0], h = t.shape[1], n = t.shape[2], d = t.shape[3];
    Tensor made{t.type, {b, n, h * d}, std::vector<double>(t.values.size())};
    for (std::size_t i = 0; i < t.values.size(); ++i) {
        const std::size_t c = i % d, token = i / d % n, head = i / d / n % h, sequence = i / d / n / h;
        made.values[((sequence * n + token) * h + head) * d + c] = t.values[i];
    }
    return made;
}

inline std::vector<Tensor> inputs(const Node &n, const Data &x) {
    std::vector<Tensor> all;
    if (n.packed) {
        const Tensor parts[] = {flat(x.q), flat(x.k), flat(x.v)};
        const std::size_t wide = n.heads * n.dim;
        Tensor one{n.type, {n.batch, n.queries, 3 * wide}, {}};
        for (std::size_t row = 0; row < n.batch * n.queries; ++row) {
            for (const Tensor &part : parts) {
                one.values.insert(one.values.end(), part.values.begin() + static_cast<std::ptrdiff_t>(row * wide),
                                  part.values.begin() + static_cast<std::ptrdiff_t>((row + 1) * wide));
            }
        }
        all.push_back(one);
    } else if (n.rank == 3) {
        all = {flat(x.q), flat(x.k), flat(x.v)};
    } else {
        all = {x.q, x.k, x.v};
    }
    if (!n.mask.shape.empty()) {
        all.push_back(n.mask);
    }
    if (!n.table.shape.empty()) {
        all.push_back(n.table);
    }
    return all;
}

// Returns the position of a token of window `w` in the picture before it was rolled, one number per axis, negative if the token was
// carried around the edge.
inline int carried(const Node &n, std::size_t w, std::size_t token, int axis) {
    const int columns = n.picture[1] / n.grid[1], down = static_cast<int>(w) / columns, right = static_cast<int>(w) % columns;
    const int inside = axis == 0 ? static_cast<int>(token) / n.grid[1] : static_cast<int>(token) % n.grid[1];
    const int at = (axis == 0 ? down : right) * n.grid[static_cast<std::size_t>(axis)] + inside;
    const std::size_t a = static_cast<std::size_t>(axis);
    return at + n.shift[a] < n.picture[a] ? 0 : 1;
}

// Returns the mask term of a pair: 0, the number added, or minus infinity.
inline double masked(const Tensor &mask, const std::size_t (&at)[4], std::size_t keys) {
    const std::size_t rank = mask.shape.size(), last = mask.shape[rank - 1];
    if (last != 1 && last < keys && at[3] >= last) {
        return -std::numeric_limits<double>::infinity();
    }
    std::size_t index = 0;
    for (std::size_t axis = 0; axis < rank; ++axis) {
        index = index * mask.shape[axis] + (mask.shape[axis] == 1 ? 0 : at[4 - rank + axis]);
    }
    const double x = mask.values[index];
    return mask.type != DataType::kBOOL ? x : x != 0 ? 0 : -std::numeric_limits<double>::infinity();
}

inline std::vector<double> definition(const Node &n, const Data &x) {
    std::vector<double> y(n.batch * n.heads * n.queries * n.value_dim);
    const std::size_t windows =
        n.picture[0] == 0 ? 1 : static_cast<std::size_t>(n.picture[0] / n.grid[0] * (n.picture[1] / n.grid[1]));
    for (std::size_t row = 0; row < n.batch * n.heads * n.queries; ++row) {
        const std::size_t i = row % n.queries, h = row / n.queries % n.heads, b = row / n.queries / n.heads;
        const std::size_t kv = (b * n.kv_heads + h / (n.heads / n.kv_heads)) * n.keys;
        double sum = 0;
        for (std::size_t j = 0; j < n.keys; ++j) {
            const std::size_t place = n.align_last ? i + n.keys - n.queries : i;
            const std::ptrdiff_t apart = static_cast<std::ptrdiff_t>(j) - static_cast<std::ptrdiff_t>(place);
            if ((n.causal && apart > 0) || (n.window[0] >= 0 && -apart > n.window[0]) ||
                (n.window[1] >= 0 && apart > n.window[1])) {
                continue;
            }
            double s = 0;
            for (std::size_t c = 0; c < n.dim; ++c) {
                s += x.q.values[row * n.dim + c] * x.k.values[(kv + j) * n.dim + c];
            }
            s *= n.scale != 0 ? n.scale : 1 / std::sqrt(static_cast<double>(n.dim));
            s = n.softcap != 0 ? n.softcap * std::tanh(s / n.softcap) : s;
            if (!n.mask.shape.empty()) {
                s += masked(n.mask, {b, h, i, j}, n.keys);
            }
            if (!n.table.shape.empty()) {
                const int g = n.grid[1];
                const int down = static_cast<int>(i) / g - static_cast<int>(j) / g + n.grid[0] - 1;
                const int right = static_cast<int>(i) % g - static_cast<int>(j) % g + g - 1;
                s += n.table.values[static_cast<std::size_t>(down * (2 * g - 1) + right) * n.heads + h];
            }
            bool apart_in_picture = false;
            for (int axis = 0; axis < 2 && n.picture[0] != 0; ++axis) {
                apart_in_picture |= carried(n, b % windows, i, axis) != carried(n, b % windows, j, axis);
            }
            if (apart_in_picture) {
                continue;
            }
            const double p = std::exp(s);
            sum += p;
            for (std::size_t c = 0; c < n.value_dim; ++c) {
                y[row * n.value_dim + c] += p * x.v.values[(kv + j) * n.value_dim + c];
            }
        }
        for (std::size_t c = 0; c < n.value_dim && sum > 0; ++c) {
            y[row * n.value_dim + c] /= sum;
        }
    }
    return y;
}

inline double distance(const std::vector<double> &a, const std::vector<double> &b) {
    CHECK(a.size() == b.size() && !a.empty());
    double most = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double d = std::fabs(a[i] - b[i]);
        if (!(d <= most)) {
            most = d == d ? d : HUGE_VAL;
        }
    }
    return most;
}

} // namespace oracle

#endif
