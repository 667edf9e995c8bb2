// Drives the plugin through its own interface, as TensorRT does: found in the registry by the node's type, made from
// fields, copied, queried for shapes, formats and workspace, serialised, read again and run on device memory. Its answers
// are compared with the definition of attention in double precision, and must differ from that definition without one of
// the node's features. Invalid arguments must be refused.
#include <atomic>
#include <memory>
#include <thread>

#include <elsa/tensorrt.hpp>

#include "oracle.hpp"

int checks = 0;

// Symbols that TensorRT's library exports to plugins.
extern "C" nvinfer1::IPluginRegistry *getPluginRegistry() noexcept { return &host::registry(); }
extern "C" nvinfer1::ILogger *getLogger() noexcept { return &host::logger(); }

namespace {

using namespace oracle;
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

// Returns descriptions of the inputs, and of the output with the plugin's shape.
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

// Does what TensorRT does during a build: formats, shapes, workspace. Returns the bytes of workspace.
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

// Tensors of a run on the device.
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
    // Returns the output, [batch, heads, tokens, dim].
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

// Builds with one copy, serialises it, and runs a copy made from those bytes.
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

// Runs nodes, each with and without the features whose removal must change the answer.
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
    n.keys = 20;
    n.align_last = true;
    add("causal from the last key", n, [](Node &x) { x.align_last = false; });
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

// Checks shapes that change between runs of one copy; a budget set by the first shape; a captured stream; two copies in
// two threads.
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
        // No workspace from TensorRT.
        const Plugin alone(plugin->clone());
        Loaded other(all, shapes.back());
        CHECK(other.enqueue(alone, shapes, nullptr, stream) == 0 && driver::cu().wait(stream) == 0);
        CHECK(tokens == 0 || distance(definition(n, x), other.answer(n)) <= 2e-5);
        // A graph with the launches of the host.
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

// ---- Refusals

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
    refused(F().whole("align_last", {1}), "align_last: 1; allowed: with is_causal");
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
    // TensorRT names 64-bit integers from version 10 on.
    const int64_t heads = 4;
    CHECK(made(F().add("num_heads", &heads, PluginFieldType::kINT64, 1)) != nullptr);
    CHECK(made(F()) != nullptr && host::logger().said.empty());
}

// Checks serialised plugins that were cut, lengthened or changed: they are refused, or usable.
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
    other[4] = 3;
    CHECK(read(other) == nullptr && logged("serialised plugin: form 3; allowed: form 2"));
    std::mt19937 random(7);
    int taken = 0;
    for (int round = 0; round < 4000; ++round) {
        other = bytes;
        for (int change = 0; change <= round % 3; ++change) {
            other[8 + random() % (bytes.size() - 8)] = static_cast<char>(round < 2000 ? 1 << random() % 8 : random());
        }
        const Plugin found = read(other);
        if (found != nullptr) {
            // A plugin that was read serialises to the same bytes, and any shape succeeds or fails with a message.
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

// Checks shapes and types that do not fit the node: the run fails with the argument's name, and the next one succeeds.
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
    refused(3, f32, {15, 14}, "mask");
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
    // Memory that is not the device's.
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
    CHECK(names->nbFields == 11 && std::string(names->fields[0].name) == "num_heads");
    // The adaptor for bindings compiles with TensorRT's own header.
    const auto adaptor = &elsa::from_tensorrt<float>;
    CHECK(adaptor != nullptr);
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
