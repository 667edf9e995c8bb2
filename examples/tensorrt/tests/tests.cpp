// Drives the plugin through its own interface, as TensorRT does: found in the registry by the node's type, made from
// fields, copied, asked for shapes, formats and workspace, serialised, read again and run, on memory of a device. Its
// answers are compared with the definition of attention in double precision, and with that definition without one of the
// node's features, from which they must differ. And with everything that it has to refuse.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "host.hpp"

int checks = 0;

// What TensorRT's library exports to plugins.
extern "C" nvinfer1::IPluginRegistry *getPluginRegistry() noexcept { return &host::registry(); }
extern "C" nvinfer1::ILogger *getLogger() noexcept { return &host::logger(); }

namespace {

using namespace nvinfer1;
typedef std::vector<std::size_t> Shape;

// ---- Elements

std::uint16_t to_half(float x) {
    // Of numbers in the normal range of f16, rounded to nearest.
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

double of_half(std::uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 31  ? std::numeric_limits<double>::infinity()
                        : exponent == 0 ? std::ldexp(fraction, -24)
                                        : std::ldexp(1024 + fraction, exponent - 25);
    return (bits & 0x8000) != 0 ? -size : size;
}

// A tensor of the host, with the values that its elements have.
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

std::size_t volume(const Shape &shape) {
    std::size_t count = 1;
    for (const std::size_t axis : shape) {
        count *= axis;
    }
    return count;
}

Tensor noise(DataType type, Shape shape, unsigned seed, double size = 1) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> draw(0.01, size);
    Tensor made{type, std::move(shape), {}};
    for (std::size_t i = 0; i < volume(made.shape); ++i) {
        const float x = static_cast<float>((random() & 1) != 0 ? draw(random) : -draw(random));
        made.values.push_back(type == DataType::kHALF ? of_half(to_half(x)) : static_cast<double>(x));
    }
    return made;
}

// ---- A node and the definition of what it computes

struct Node {
    std::size_t batch = 2, heads = 2, kv_heads = 2, queries = 12, keys = 12, dim = 16, value_dim = 16;
    int rank = 4;
    bool packed = false, causal = false;
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

// Q, K, V [batch, heads, tokens, dim], whatever the layout of the inputs.
struct Data {
    Tensor q, k, v;
};

Data data(const Node &n, unsigned seed = 1) {
    return {noise(n.type, {n.batch, n.heads, n.queries, n.dim}, seed), noise(n.type, {n.batch, n.kv_heads, n.keys, n.dim}, seed + 1),
            noise(n.type, {n.batch, n.kv_heads, n.keys, n.value_dim}, seed + 2)};
}

// [batch, heads, tokens, dim] as [batch, tokens, heads * dim].
Tensor flat(const Tensor &t) {
    const std::size_t b = t.shape[0], h = t.shape[1], n = t.shape[2], d = t.shape[3];
    Tensor made{t.type, {b, n, h * d}, std::vector<double>(t.values.size())};
    for (std::size_t i = 0; i < t.values.size(); ++i) {
        const std::size_t c = i % d, token = i / d % n, head = i / d / n % h, sequence = i / d / n / h;
        made.values[((sequence * n + token) * h + head) * d + c] = t.values[i];
    }
    return made;
}

std::vector<Tensor> inputs(const Node &n, const Data &x) {
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

// The place of a token of window `w` in the picture before it was rolled, as a number for each axis that is less than
// zero where the token was carried around the edge.
int carried(const Node &n, std::size_t w, std::size_t token, int axis) {
    const int columns = n.picture[1] / n.grid[1], down = static_cast<int>(w) / columns, right = static_cast<int>(w) % columns;
    const int inside = axis == 0 ? static_cast<int>(token) / n.grid[1] : static_cast<int>(token) % n.grid[1];
    const int at = (axis == 0 ? down : right) * n.grid[static_cast<std::size_t>(axis)] + inside;
    const std::size_t a = static_cast<std::size_t>(axis);
    return at + n.shift[a] < n.picture[a] ? 0 : 1;
}

// What the mask says of a pair: 0 or what it adds, or minus infinity.
double masked(const Tensor &mask, const std::size_t (&at)[4], std::size_t keys) {
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

std::vector<double> definition(const Node &n, const Data &x) {
    std::vector<double> y(n.batch * n.heads * n.queries * n.value_dim);
    const std::size_t windows =
        n.picture[0] == 0 ? 1 : static_cast<std::size_t>(n.picture[0] / n.grid[0] * (n.picture[1] / n.grid[1]));
    for (std::size_t row = 0; row < n.batch * n.heads * n.queries; ++row) {
        const std::size_t i = row % n.queries, h = row / n.queries % n.heads, b = row / n.queries / n.heads;
        const std::size_t kv = (b * n.kv_heads + h / (n.heads / n.kv_heads)) * n.keys;
        double sum = 0;
        for (std::size_t j = 0; j < n.keys; ++j) {
            const std::ptrdiff_t apart = static_cast<std::ptrdiff_t>(j) - static_cast<std::ptrdiff_t>(i);
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

double distance(const std::vector<double> &a, const std::vector<double> &b) {
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

// ---- The plugin

IPluginCreator &creator() {
    IPluginCreatorInterface *const found = host::registry().getCreator("ElsaAttention", "1", "");
    CHECK(found != nullptr);
    return *static_cast<IPluginCreator *>(found);
}

struct Destroy {
    void operator()(IPluginV2DynamicExt *plugin) const { plugin->destroy(); }
};
typedef std::unique_ptr<IPluginV2DynamicExt, Destroy> Plugin;

Plugin made(host::Fields fields) {
    return Plugin(static_cast<IPluginV2DynamicExt *>(creator().createPlugin("node", fields.get())));
}
Plugin read(const std::vector<char> &bytes) {
    return Plugin(static_cast<IPluginV2DynamicExt *>(creator().deserializePlugin("node", bytes.data(), bytes.size())));
}
std::vector<char> written(const Plugin &plugin) {
    std::vector<char> bytes(plugin->getSerializationSize());
    CHECK(!bytes.empty());
    plugin->serialize(bytes.data());
    return bytes;
}

// Descriptions of the inputs, and of the output as the plugin computes its shape.
std::vector<PluginTensorDesc> described(const Plugin &plugin, const std::vector<Tensor> &all) {
    std::vector<PluginTensorDesc> made;
    std::vector<DimsExprs> shapes;
    host::Sizes sizes;
    for (const Tensor &each : all) {
        made.push_back(host::described(each.type, each.shape));
        DimsExprs shape = {};
        shape.nbDims = static_cast<int32_t>(each.shape.size());
        for (std::size_t i = 0; i < each.shape.size(); ++i) {
            shape.d[i] = sizes.constant(static_cast<int64_t>(each.shape[i]));
        }
        shapes.push_back(shape);
    }
    const DimsExprs out = plugin->getOutputDimensions(0, shapes.data(), static_cast<int32_t>(all.size()), sizes);
    PluginTensorDesc y = {};
    y.type = plugin->getOutputDataType(0, &made[0].type, 1);
    y.dims.nbDims = out.nbDims;
    for (int32_t i = 0; i < out.nbDims; ++i) {
        y.dims.d[i] = out.d[i]->getConstantValue();
    }
    made.push_back(y);
    return made;
}

// What TensorRT does while it builds: formats, shapes, workspace. Returns the bytes of workspace.
std::size_t build(const Plugin &plugin, const std::vector<PluginTensorDesc> &all) {
    const int32_t count = static_cast<int32_t>(all.size()) - 1;
    for (int32_t at = 0; at <= count; ++at) {
        CHECK(plugin->supportsFormatCombination(at, all.data(), count, 1));
        std::vector<PluginTensorDesc> other = all;
        other[static_cast<std::size_t>(at)].format = TensorFormat::kCHW4;
        CHECK(!plugin->supportsFormatCombination(at, other.data(), count, 1));
        other = all;
        other[static_cast<std::size_t>(at)].type = DataType::kINT8;
        CHECK(!plugin->supportsFormatCombination(at, other.data(), count, 1));
    }
    std::vector<DynamicPluginTensorDesc> dynamic;
    for (const PluginTensorDesc &each : all) {
        DynamicPluginTensorDesc made = {};
        made.desc = each;
        made.min = made.max = each.dims;
        dynamic.push_back(made);
    }
    plugin->configurePlugin(dynamic.data(), count, &dynamic.back(), 1);
    return plugin->getWorkspaceSize(all.data(), count, &all.back(), 1);
}

// The tensors of a run on the device.
struct Loaded {
    std::vector<driver::Memory> memory;
    std::vector<const void *> from;
    driver::Memory out;

    Loaded(const std::vector<Tensor> &all, const PluginTensorDesc &y) : out(blank(y)) {
        for (const Tensor &each : all) {
            memory.emplace_back(each.bytes());
        }
        for (const driver::Memory &each : memory) {
            from.push_back(each.get());
        }
    }
    static std::vector<char> blank(const PluginTensorDesc &y) {
        std::size_t bytes = y.type == DataType::kHALF ? 2 : 4;
        for (int32_t i = 0; i < y.dims.nbDims; ++i) {
            bytes *= static_cast<std::size_t>(y.dims.d[i]);
        }
        return std::vector<char>(bytes, '\xff');
    }
    int32_t enqueue(const Plugin &plugin, const std::vector<PluginTensorDesc> &all, void *room, void *stream) {
        void *to[] = {out.get()};
        return plugin->enqueue(all.data(), &all.back(), from.data(), to, room, static_cast<cudaStream_t>(stream));
    }
    // The output, [batch, heads, tokens, dim].
    std::vector<double> answer(const Node &n) const {
        const std::vector<char> bytes = out.bytes();
        const std::size_t size = n.type == DataType::kHALF ? 2 : 4, d = n.value_dim;
        std::vector<double> y(bytes.size() / size);
        for (std::size_t i = 0; i < y.size(); ++i) {
            float single = 0;
            std::uint16_t half = 0;
            std::memcpy(n.type == DataType::kHALF ? static_cast<void *>(&half) : &single, &bytes[i * size], size);
            const double value = n.type == DataType::kHALF ? of_half(half) : static_cast<double>(single);
            const std::size_t c = i % d, head = i / d % n.heads, token = i / d / n.heads % n.queries,
                              sequence = i / d / n.heads / n.queries;
            y[n.rank == 4 ? i : ((sequence * n.heads + head) * n.queries + token) * d + c] = value;
        }
        return y;
    }
};

// Builds with one copy, serialises it, and runs a copy of what was read.
std::vector<double> answered(const Node &n, const Data &x, void *stream) {
    host::logger().said.clear();
    Plugin first = made(n.fields());
    CHECK(first != nullptr);
    first->setPluginNamespace("robot");
    Plugin copy(first->clone());
    first.reset();
    CHECK(std::string(copy->getPluginNamespace()) == "robot" && std::string(copy->getPluginType()) == "ElsaAttention");
    CHECK(copy->getNbOutputs() == 1 && std::string(copy->getPluginVersion()) == "1" && copy->initialize() == 0);
    const std::vector<Tensor> all = inputs(n, x);
    const std::vector<PluginTensorDesc> descriptions = described(copy, all);
    const std::size_t bytes = build(copy, descriptions);
    CHECK(bytes > 0);
    const Plugin again = read(written(copy));
    copy->terminate();
    copy.reset();
    CHECK(again != nullptr);
    const Plugin context(again->clone());
    const driver::Memory room(bytes);
    Loaded loaded(all, descriptions.back());
    CHECK(loaded.enqueue(context, descriptions, room.get(), stream) == 0);
    CHECK(driver::cu().wait(stream) == 0);
    CHECK(host::logger().said.empty());
    return loaded.answer(n);
}

Tensor flags(Shape shape, unsigned seed) {
    Tensor made = noise(DataType::kFLOAT, std::move(shape), seed);
    made.type = DataType::kBOOL;
    for (double &x : made.values) {
        x = x > -0.5 ? 1 : 0;
    }
    return made;
}

Node swin() {
    Node n;
    n.batch = 8;
    n.heads = n.kv_heads = 3;
    n.queries = n.keys = 15;
    n.grid = {{3, 5}};
    n.table = noise(n.type, {5 * 9, 3}, 40, 3);
    return n;
}

// Nodes, each with what must change the answer when it is left out.
void nodes(void *stream) {
    struct Case {
        const char *name;
        Node node, without;
    };
    std::vector<Case> cases;
    const auto add = [&](const char *name, Node with, void (*drop)(Node &)) {
        Node without = with;
        drop(without);
        cases.push_back({name, with, without});
    };
    const auto nothing = [](Node &) {};
    Node n;
    add("plain", n, nothing);
    n.value_dim = 32;
    n.keys = 23;
    add("another dim of V", n, nothing);
    n = Node();
    n.scale = 1.5;
    add("scale", n, [](Node &x) { x.scale = 0; });
    n = Node();
    n.softcap = 0.25;
    n.scale = 2;
    add("softcap", n, [](Node &x) { x.softcap = 0; });
    n = Node();
    n.causal = true;
    add("causal", n, [](Node &x) { x.causal = false; });
    n = Node();
    n.window = {{2, -1}};
    add("window to the left", n, [](Node &x) { x.window[0] = -1; });
    n.window = {{-1, 3}};
    add("window to the right", n, [](Node &x) { x.window[1] = -1; });
    n = Node();
    n.heads = 4;
    n.rank = 3;
    n.value_dim = 8;
    add("heads that share keys, 3 axes", n, nothing);
    n = Node();
    n.rank = 3;
    n.packed = true;
    add("packed", n, nothing);
    n = Node();
    n.mask = flags({2, 1, 12, 12}, 30);
    add("boolean mask", n, [](Node &x) { x.mask = Tensor(); });
    n.mask = noise(DataType::kFLOAT, {2, 12, 12}, 31, 4);
    add("added mask", n, [](Node &x) { x.mask = Tensor(); });
    n.mask = noise(DataType::kFLOAT, {12, 7}, 32, 4);
    add("mask of the first keys", n, [](Node &x) { x.mask = Tensor(); });
    n.rank = 3;
    n.packed = true;
    n.type = DataType::kHALF;
    n.mask = noise(DataType::kHALF, {1, 1, 1, 12}, 33, 4);
    add("mask of f16, packed", n, [](Node &x) { x.mask = Tensor(); });
    add("table", swin(), [](Node &x) { x.table = Tensor(); });
    n = swin();
    n.picture = {{6, 10}};
    add("table in a picture", n, [](Node &x) { x.table = Tensor(); });
    n.shift = {{1, 2}};
    add("shift", n, [](Node &x) { x.shift = {{0, 0}}; });
    n.shift = {{0, 2}};
    add("shift to the right", n, [](Node &x) { x.shift = {{0, 0}}; });
    n.mask = noise(DataType::kFLOAT, {15, 15}, 34, 4);
    add("table, shift and mask", n, [](Node &x) { x.mask = Tensor(); });
    n.type = n.table.type = n.mask.type = DataType::kHALF;
    n.table = noise(DataType::kHALF, {5 * 9, 3}, 41, 3);
    n.mask = noise(DataType::kHALF, {15, 15}, 35, 4);
    n.rank = 3;
    n.packed = true;
    add("table, shift and mask of f16, packed", n, [](Node &x) { x.shift = {{0, 0}}; });
    for (const Case &each : cases) {
        const Data x = data(each.node);
        const std::vector<double> want = definition(each.node, x), found = answered(each.node, x, stream);
        const double error = distance(want, found), limit = each.node.type == DataType::kHALF ? 4e-3 : 2e-5;
        const double dropped = distance(definition(each.without, x), found);
        const bool plain = distance(definition(each.without, x), want) == 0;
        std::printf("%s: error %.1e; without it %.1e\n", each.name, error, dropped);
        CHECK(error <= limit);
        CHECK(plain || dropped > 0.02);
    }
}

// Shapes that change between runs, in one copy; a budget that the first shape has set; a stream that is captured; and two
// copies in two threads.
void runs(void *stream) {
    Node n;
    n.rank = 3;
    const Plugin plugin = made(n.fields());
    const std::vector<PluginTensorDesc> first = described(plugin, inputs(n, data(n)));
    const driver::Memory room(build(plugin, first));
    for (std::size_t tokens : {12, 1, 300, 64, 12, 0}) {
        n.batch = tokens == 300 ? 1 : 3;
        n.queries = tokens == 300 ? 1 : tokens;
        n.keys = tokens;
        const Data x = data(n, 50);
        const std::vector<Tensor> all = inputs(n, x);
        const std::vector<PluginTensorDesc> shapes = described(plugin, all);
        Loaded loaded(all, shapes.back());
        for (int times = 0; times < 2; ++times) {
            CHECK(loaded.enqueue(plugin, shapes, room.get(), stream) == 0 && driver::cu().wait(stream) == 0);
        }
        CHECK(tokens == 0 || distance(definition(n, x), loaded.answer(n)) <= 2e-5);
        // Without a workspace of TensorRT's.
        const Plugin alone(plugin->clone());
        Loaded other(all, shapes.back());
        CHECK(other.enqueue(alone, shapes, nullptr, stream) == 0 && driver::cu().wait(stream) == 0);
        CHECK(tokens == 0 || distance(definition(n, x), other.answer(n)) <= 2e-5);
        // A graph, whose launches are those of the host.
        void *graph = nullptr, *made_of_it = nullptr;
        Loaded third(all, shapes.back());
        driver::Functions &cu = driver::cu();
        CHECK(cu.begin_capture(stream, 1) == 0);
        CHECK(third.enqueue(plugin, shapes, room.get(), stream) == 0);
        CHECK(cu.end_capture(stream, &graph) == 0);
        CHECK((cu.instantiate_with_flags != nullptr ? cu.instantiate_with_flags(&made_of_it, graph, 0)
                                                     : cu.instantiate(&made_of_it, graph, nullptr, nullptr, 0)) == 0);
        CHECK(cu.launch(made_of_it, stream) == 0 && cu.wait(stream) == 0);
        CHECK(third.out.bytes() == loaded.out.bytes());
        CHECK(cu.end_instance(made_of_it) == 0 && cu.end_graph(graph) == 0);
    }

    n = swin();
    n.picture = {{6, 10}};
    n.shift = {{1, 2}};
    const Plugin shared = made(n.fields());
    const Data x = data(n, 60);
    const std::vector<Tensor> all = inputs(n, x);
    const std::vector<PluginTensorDesc> shapes = described(shared, all);
    const std::size_t bytes = build(shared, shapes);
    const std::vector<double> want = definition(n, x);
    std::vector<char> answers[2];
    std::atomic<int> failed{0};
    std::vector<std::thread> threads;
    driver::Memory rooms[] = {driver::Memory(bytes), driver::Memory(bytes)};
    std::vector<Loaded> loaded;
    for (int i = 0; i < 2; ++i) {
        loaded.emplace_back(all, shapes.back());
    }
    for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&, i] {
            driver::Functions &cu = driver::cu();
            void *context = nullptr, *own = nullptr;
            const Plugin copy(shared->clone());
            failed += cu.retain(&context, 0) != 0 || cu.push(context) != 0 || cu.stream(&own, 1) != 0;
            for (int times = 0; times < 20; ++times) {
                failed += loaded[static_cast<std::size_t>(i)].enqueue(copy, shapes, rooms[i].get(), own) != 0;
                failed += cu.wait(own) != 0;
            }
            failed += cu.end_stream(own) != 0;
        });
    }
    for (std::thread &each : threads) {
        each.join();
    }
    CHECK(failed == 0);
    CHECK(distance(want, loaded[0].answer(n)) <= 2e-5 && loaded[0].out.bytes() == loaded[1].out.bytes());
}

// ---- What is refused

bool logged(const std::string &part) {
    const bool found = host::logger().said.find(part) != std::string::npos;
    if (!found) {
        std::fprintf(stderr, "no \"%s\" in: %s\n", part.c_str(), host::logger().said.c_str());
    }
    host::logger().said.clear();
    return found;
}

void fields() {
    const auto refused = [](host::Fields fields, const char *part) {
        CHECK(made(std::move(fields)) == nullptr && logged(part));
    };
    typedef host::Fields F;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    refused(F().whole("nonsense", {1}), "attribute nonsense: unknown; allowed: num_heads");
    refused(F().add(nullptr, nullptr, PluginFieldType::kINT32, 1), "attribute : unknown");
    refused(F().whole("num_heads", {0}), "num_heads: 0");
    refused(F().whole("num_heads", {-3}), "num_heads: -3");
    refused(F().whole("num_heads", {1 << 30}), "num_heads: ");
    refused(F().whole("num_heads", {4, 4}), "num_heads: ");
    refused(F().whole("num_heads", {4}).whole("kv_num_heads", {3}), "kv_num_heads: 3; allowed: a divisor");
    refused(F().add("num_heads", nullptr, PluginFieldType::kINT32, 1), "num_heads: ");
    refused(F().real("num_heads", 4), "num_heads: elements of type");
    refused(F().whole("scale", {1}), "scale: ");
    refused(F().real("scale", nan), "scale: nan");
    refused(F().real("softcap", -1), "softcap: -1");
    refused(F().whole("is_causal", {2}), "is_causal: 2; allowed: 0 or 1");
    refused(F().whole("packed", {1}), "packed: 1; allowed: with num_heads");
    refused(F().whole("packed", {1}).whole("num_heads", {4}).whole("kv_num_heads", {2}), "kv_num_heads: 2");
    refused(F().whole("window", {1}), "window: 1 elements");
    refused(F().whole("window", {1, 2, 3}), "window: 3 elements");
    refused(F().whole("window", {-2, 1}), "window: -2, 1");
    refused(F().whole("grid", {0, 3}), "grid: 0, 3");
    refused(F().whole("picture", {6, 6}), "picture: 6, 6");
    refused(F().whole("grid", {3, 3}).whole("picture", {6, 7}), "picture: 6, 7; allowed: multiples");
    refused(F().whole("grid", {3, 3}).whole("shift", {1, 1}), "shift: 1, 1");
    refused(F().whole("grid", {3, 3}).whole("picture", {6, 6}).whole("shift", {3, 0}), "shift: 3, 0");
    CHECK(creator().createPlugin("node", nullptr) == nullptr && logged("fields: null"));
    // TensorRT names integers of 64 bits from version 10 on.
    const int64_t heads = 4;
    CHECK(made(F().add("num_heads", &heads, PluginFieldType::kINT64, 1)) != nullptr);
    CHECK(made(F()) != nullptr && host::logger().said.empty());
}

// Serialised plugins that were cut, lengthened or changed: refused, or plugins that are usable.
void buffers() {
    Node n = swin();
    n.picture = {{6, 10}};
    n.shift = {{1, 2}};
    const Plugin plugin = made(n.fields());
    const std::vector<PluginTensorDesc> shapes = described(plugin, inputs(n, data(n)));
    build(plugin, shapes);
    const std::vector<char> bytes = written(plugin);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
        CHECK(read(std::vector<char>(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size))) == nullptr);
    }
    std::vector<char> other = bytes;
    other.push_back(0);
    CHECK(read(other) == nullptr && logged("serialised plugin: "));
    CHECK(creator().deserializePlugin("node", nullptr, bytes.size()) == nullptr && logged("serialised plugin: "));
    other = bytes;
    other[4] = 2;
    CHECK(read(other) == nullptr && logged("serialised plugin: form 2"));
    std::mt19937 random(7);
    int taken = 0;
    for (int round = 0; round < 4000; ++round) {
        other = bytes;
        for (int change = 0; change <= round % 3; ++change) {
            other[8 + random() % (bytes.size() - 8)] = static_cast<char>(round < 2000 ? 1 << random() % 8 : random());
        }
        const Plugin found = read(other);
        if (found != nullptr) {
            // What was read is what is written, and no shape makes it fail otherwise than by a message.
            taken++;
            CHECK(written(found) == other);
            described(found, inputs(n, data(n)));
            found->supportsFormatCombination(3, shapes.data(), 4, 1);
        }
    }
    CHECK(taken > 0 && taken < 4000);
    host::logger().said.clear();
    CHECK(written(read(bytes)) == bytes);
}

// Shapes and types that do not fit the node: the run fails with the argument's name, and the next one works.
void shapes(void *stream) {
    Node n = swin();
    n.mask = noise(DataType::kFLOAT, {15, 15}, 34, 4);
    n.picture = {{6, 10}};
    const Data x = data(n);
    const std::vector<Tensor> all = inputs(n, x);
    const Plugin plugin = made(n.fields());
    const std::vector<PluginTensorDesc> good = described(plugin, all);
    const driver::Memory room(build(plugin, good));
    Loaded loaded(all, good.back());
    const auto refused = [&](std::size_t tensor, DataType type, Shape shape, const char *part) {
        std::vector<PluginTensorDesc> bad = good;
        bad[tensor] = host::described(type, shape);
        CHECK(loaded.enqueue(plugin, bad, room.get(), stream) != 0 && logged(part));
        CHECK(plugin->getWorkspaceSize(bad.data(), 5, &bad.back(), 1) == 0 && logged(part));
    };
    const DataType f32 = DataType::kFLOAT;
    refused(0, f32, {8, 3, 15}, "num_heads: absent");
    refused(0, f32, {8, 15}, "Q: 2 axes");
    refused(0, DataType::kINT8, {8, 3, 15, 16}, "Q: type");
    refused(1, DataType::kHALF, {8, 3, 15, 16}, "K: another type");
    refused(1, f32, {8, 3, 240}, "K, V: 3 and 4 axes");
    refused(1, f32, {8, 2, 15, 16}, "");
    refused(2, f32, {8, 3, 14, 16}, "");
    refused(3, f32, {4, 15, 15}, "mask");
    refused(3, f32, {}, "mask: 0 axes");
    refused(3, f32, {1, 8, 3, 15, 15}, "mask: 5 axes");
    refused(3, DataType::kINT32, {15, 15}, "mask: type");
    refused(4, f32, {44, 3}, "bias_table: ");
    refused(4, f32, {45, 2}, "");
    refused(4, DataType::kBOOL, {45, 3}, "bias_table: type");
    refused(5, f32, {8, 3, 15, 8}, "Y: ");
    std::vector<PluginTensorDesc> bad = good;
    bad[0].dims.d[2] = -1;
    CHECK(loaded.enqueue(plugin, bad, room.get(), stream) != 0 && logged("an axis of -1"));
    bad = good;
    bad[3].dims.nbDims = 99;
    CHECK(loaded.enqueue(plugin, bad, room.get(), stream) != 0 && logged("99 axes"));
    for (int32_t count : {0, 1, 3, 6}) {
        CHECK(!plugin->supportsFormatCombination(0, good.data(), count, 1) && logged("inputs: " + std::to_string(count)));
    }
    CHECK(loaded.enqueue(plugin, good, room.get(), stream) == 0 && driver::cu().wait(stream) == 0);
    CHECK(distance(definition(n, x), loaded.answer(n)) <= 2e-5);
    // Memory that is none of the device's.
    std::vector<char> host_memory(loaded.out.bytes().size());
    void *to[] = {host_memory.data()};
    CHECK(plugin->enqueue(good.data(), &good.back(), loaded.from.data(), to, room.get(),
                          static_cast<cudaStream_t>(stream)) != 0 && logged("out: address"));
}

} // namespace

int main(int count, char **arguments) {
    CHECK(count == 2);
    driver::open();
    void *const library = dlopen(arguments[1], RTLD_NOW);
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
    }
    CHECK(library != nullptr && host::registry().creators.size() == 1);
    const PluginFieldCollection *const names = creator().getFieldNames();
    CHECK(names->nbFields == 10 && std::string(names->fields[0].name) == "num_heads");
    void *stream = nullptr;
    CHECK(driver::cu().stream(&stream, 1) == 0);
    nodes(stream);
    runs(stream);
    fields();
    buffers();
    shapes(stream);
    CHECK(driver::cu().end_stream(stream) == 0);
    std::printf("%d checks\n", checks);
    return 0;
}
