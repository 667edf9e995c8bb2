// ElsaAttention as a plugin of TensorRT 8.2 and newer.
//
// TensorRT's ONNX parser looks up an unknown node by its type among the registered plugins. Loading this library registers
// type ElsaAttention, version 1.
//
// 1. TensorRT passes no absent inputs to a plugin. Their number determines them: q, k and v, or with `packed` one tensor of
//    all three; the mask, if there is one more; and last the table, if there is a `grid`.
// 2. TensorRT requests the workspace before it knows the shapes of a run, and a run does not state its size. The least of
//    all answers is stored in the serialised plugin and is the budget of every plan.
// 3. Plans depend on shapes, and planning takes longer than a run. Each copy of the plugin keeps the plans of its recent
//    shapes. A copy belongs to one execution context, which runs in one thread at a time.
// 4. No argument is trusted: fields, serialised bytes and shapes are checked, refusals are reported to TensorRT's logger,
//    and no exception leaves a function.
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "node.hpp"

// Newer versions deprecate this interface in favour of one that 8.2 lacks.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

using namespace node;

const char *const TYPE = "ElsaAttention";
const char *const VERSION = "1";
// Number of shapes for which a copy of the plugin keeps plans.
const std::size_t MOST_PLANS = 64;
// Least workspace requested from TensorRT.
const std::size_t LEAST_WORKSPACE = 256;

// Reports the reason for a refusal to TensorRT's logger.
void refuse(const std::string &why) noexcept {
    try {
        const std::string text = std::string(TYPE) + ": " + why;
        if (nvinfer1::ILogger *const log = getLogger()) log->log(nvinfer1::ILogger::Severity::kERROR, text.c_str());
    } catch (...) {
        // No memory for the message.
    }
}

// ---- Engine, plans and runs

void *current_context() noexcept {
    typedef int (*Get)(void **);
    static const Get get = [] {
        void *const library = dlopen("libcuda.so.1", RTLD_NOW);
        void *const found = library == nullptr ? nullptr : dlsym(library, "cuCtxGetCurrent");
        Get made = nullptr;
        std::memcpy(&made, &found, sizeof made);
        return made;
    }();
    void *context = nullptr;
    return get != nullptr && get(&context) == 0 ? context : nullptr;
}

void expect(const elsa::status &done) {
    if (!done.ok()) {
        throw refused{done.message()};
    }
}

template <class T>
T expect(elsa::result<T> outcome) {
    expect(outcome.status());
    return std::move(outcome).value();
}

// Returns the engine of the current context, which all plugins share: one for each context, alive while a plugin uses it.
std::shared_ptr<const elsa::engine> engine() {
    static std::mutex &turn = *new std::mutex;
    static auto &kept = *new std::map<void *, std::weak_ptr<const elsa::engine>>;
    const std::lock_guard<std::mutex> guard(turn);
    std::weak_ptr<const elsa::engine> &slot = kept[current_context()];
    std::shared_ptr<const elsa::engine> found = slot.lock();
    if (!found) {
        elsa::engine_options options;
        options.backend = ELSA_BACKEND_CUDA;
        options.fallback = ELSA_FALLBACK_FAIL;
        options.cuda_context = ELSA_CUDA_CONTEXT_CURRENT;
        options.threads = 1;
        found = std::make_shared<const elsa::engine>(expect(elsa::engine::create(options)));
        slot = found;
    }
    return found;
}

elsa::untyped_plan planned(const elsa::engine &engine, const elsa_problem &problem) {
    return expect(engine.plan(problem));
}

// Objects that runs of one shape need.
struct Ready {
    elsa::untyped_plan plan;
    elsa::workspace room;
    std::size_t needed = 0;
    void *lent = nullptr;  // address of the workspace, if it is TensorRT's
    bool own = false;
};

// Runs `body`. If it throws, logs the reason and returns `otherwise`.
template <class T, class Body>
T guarded(T otherwise, const Body &body) noexcept {
    try {
        return body();
    } catch (const refused &what) {
        refuse(what.why);
    } catch (const std::exception &what) {
        refuse(what.what());
    } catch (...) {
        refuse("an error without a name");
    }
    return otherwise;
}

class Plugin final : public nvinfer1::IPluginV2DynamicExt {
public:
    Plugin(const Stored &stored, std::string space)
        : kept_(stored), space_(std::move(space)), granted_(std::make_shared<std::atomic<std::uint64_t>>(stored.granted)) {}

    nvinfer1::IPluginV2DynamicExt *clone() const noexcept override {
        try {
            return new Plugin(*this);
        } catch (...) {
            return nullptr;
        }
    }

    nvinfer1::DimsExprs getOutputDimensions(std::int32_t, const nvinfer1::DimsExprs *in, std::int32_t inputs,
                                            nvinfer1::IExprBuilder &make) noexcept override {
        nvinfer1::DimsExprs out = in[0];
        const Attributes &a = kept_.attributes;
        const std::int32_t last = out.nbDims - 1;
        if (last != 2 && last != 3) return out;
        if (a.packed) {
            out.d[last] = make.operation(nvinfer1::DimensionOperation::kFLOOR_DIV, *in[0].d[last], *make.constant(3));
        } else if (inputs >= 3 && in[2].nbDims == out.nbDims) {
            out.d[last] = in[2].d[last];
            if (last == 2 && a.kv_num_heads != 0 && a.kv_num_heads != a.num_heads) {
                out.d[last] = make.operation(nvinfer1::DimensionOperation::kPROD, *out.d[last],
                                             *make.constant(a.num_heads / a.kv_num_heads));
            }
        }
        return out;
    }

    bool supportsFormatCombination(std::int32_t at, const PluginTensorDesc *all, std::int32_t inputs,
                                   std::int32_t) noexcept override {
        return guarded(false, [&] {
            const Places place = places(kept_.attributes, inputs);
            const DataType type = all[at].type;
            if (all[at].format != nvinfer1::TensorFormat::kLINEAR) return false;
            if (at == 0) return type == DataType::kFLOAT || type == DataType::kHALF;
            const bool added = type == all[0].type || type == DataType::kFLOAT;
            if (at == place.mask) return added || type == DataType::kBOOL;
            return at == place.table ? added : type == all[0].type;
        });
    }

    void configurePlugin(const nvinfer1::DynamicPluginTensorDesc *, std::int32_t inputs,
                         const nvinfer1::DynamicPluginTensorDesc *, std::int32_t) noexcept override {
        kept_.inputs = std::min(std::max(inputs, 0), MOST_INPUTS);
    }

    // Returns the workspace of plans of these shapes, and of a single picture or sequence of them, whose keys are divided
    // further.
    std::size_t getWorkspaceSize(const PluginTensorDesc *in, std::int32_t inputs, const PluginTensorDesc *out,
                                 std::int32_t) const noexcept override {
        return guarded(std::size_t(0), [&] {
            const std::shared_ptr<const elsa::engine> here = engine();
            elsa_problem problem = call(kept_.attributes, in, inputs, out[0]).problem;
            std::size_t most = expect(planned(*here, problem).describe()).workspace_bytes;
            if (problem.windows.size[0] == 0 && problem.mask.kind == ELSA_MASK_NONE) {
                for (elsa_view *one : {&problem.q, &problem.k, &problem.v, &problem.out}) {
                    one->shape[0] = std::min<std::size_t>(one->shape[0], 1);
                }
                most = std::max(most, expect(planned(*here, problem).describe()).workspace_bytes);
            }
            // Never 0, which means no answer. The least one counts, because a run does not state which of them applies.
            most = std::max(most, LEAST_WORKSPACE);
            std::uint64_t known = granted_->load();
            while ((known == 0 || most < known) && !granted_->compare_exchange_weak(known, most)) {
            }
            return most;
        });
    }

    std::int32_t enqueue(const PluginTensorDesc *in, const PluginTensorDesc *out, const void *const *from, void *const *to,
                         void *workspace, cudaStream_t stream) noexcept override {
        return guarded(std::int32_t(1), [&] {
            const Call c = call(kept_.attributes, in, kept_.inputs, out[0]);
            Ready &ready = made_ready(c, in, workspace);
            elsa_inputs inputs;
            elsa_outputs outputs;
            elsa_inputs_init(&inputs);
            elsa_outputs_init(&outputs);
            const auto tensor = [&](int place) { return elsa_input{from[place], c.sizes[place]}; };
            const auto behind = [&](std::size_t offset) {
                return elsa_input{static_cast<const char *>(from[0]) + offset, c.sizes[0] - std::min(offset, c.sizes[0])};
            };
            inputs.q = tensor(0);
            inputs.k = c.at.k < 0 ? behind(c.key_offset) : tensor(c.at.k);
            inputs.v = c.at.v < 0 ? behind(c.value_offset) : tensor(c.at.v);
            if (c.at.mask >= 0) inputs.mask = tensor(c.at.mask);
            if (c.at.table >= 0) inputs.bias = tensor(c.at.table);
            outputs.out.data = to[0];
            outputs.out.bytes = c.out;
            // CUDA treats null as the default stream.
            void *const on = stream != nullptr ? static_cast<void *>(stream) : reinterpret_cast<void *>(1);
            expect(ready.plan.run_device(ready.room, inputs, outputs, on));
            return 0;
        });
    }

    DataType getOutputDataType(std::int32_t, const DataType *types, std::int32_t) const noexcept override {
        return types[0];
    }
    const char *getPluginType() const noexcept override { return TYPE; }
    const char *getPluginVersion() const noexcept override { return VERSION; }
    std::int32_t getNbOutputs() const noexcept override { return 1; }
    std::int32_t initialize() noexcept override { return 0; }
    void terminate() noexcept override { ready_.clear(); }
    void destroy() noexcept override { delete this; }
    void setPluginNamespace(const char *space) noexcept override {
        guarded(0, [&] { return space_ = space == nullptr ? "" : space, 0; });
    }
    const char *getPluginNamespace() const noexcept override { return space_.c_str(); }
    std::size_t getSerializationSize() const noexcept override {
        return guarded(std::size_t(0), [&] { return written(stored()).size(); });
    }
    void serialize(void *to) const noexcept override {
        guarded(0, [&] {
            const std::vector<char> all = written(stored());
            std::memcpy(to, all.data(), all.size());
            return 0;
        });
    }

private:
    // A copy for another execution context, without plans.
    Plugin(const Plugin &other)
        : nvinfer1::IPluginV2DynamicExt(), kept_(other.kept_), space_(other.space_), granted_(other.granted_) {}

    Stored stored() const {
        Stored now = kept_;
        now.granted = granted_->load();
        return now;
    }

    Ready &made_ready(const Call &c, const PluginTensorDesc *in, void *workspace) {
        std::vector<std::int64_t> key;
        for (std::int32_t i = 0; i < kept_.inputs; ++i) {
            key.push_back(static_cast<std::int64_t>(in[i].type));
            key.push_back(in[i].dims.nbDims);
            key.insert(key.end(), in[i].dims.d, in[i].dims.d + in[i].dims.nbDims);
        }
        auto found = ready_.find(key);
        if (found == ready_.end()) {
            if (ready_.size() >= MOST_PLANS) ready_.clear();
            if (!engine_) engine_ = engine();
            Ready made;
            const std::size_t granted = static_cast<std::size_t>(granted_->load());
            if (granted > 0 && workspace != nullptr) {
                elsa::plan_options options;
                options.budget = granted;
                elsa::result<elsa::untyped_plan> fits = engine_->plan(c.problem, options);
                if (fits.ok()) {
                    made.plan = std::move(fits).value();
                    made.needed = expect(made.plan.describe()).workspace_bytes;
                }
            }
            if (!made.plan) {
                made.own = true;
                made.plan = planned(*engine_, c.problem);
                made.room = expect(made.plan.workspace());
            }
            found = ready_.emplace(std::move(key), std::move(made)).first;
        }
        Ready &ready = found->second;
        if (!ready.own && (!ready.room || (ready.needed > 0 && ready.lent != workspace))) {
            require(workspace != nullptr, "workspace", "null", "memory, as in earlier runs of these shapes");
            ready.room = expect(ready.plan.workspace_on_device(ready.needed == 0 ? nullptr : workspace, ready.needed));
            ready.lent = workspace;
        }
        return ready;
    }

    Stored kept_;
    std::string space_;
    // Least workspace requested from TensorRT, shared by all copies.
    std::shared_ptr<std::atomic<std::uint64_t>> granted_;
    std::shared_ptr<const elsa::engine> engine_;
    // Declared after the engine, so that they end before it.
    std::map<std::vector<std::int64_t>, Ready> ready_;
};

class Creator final : public nvinfer1::IPluginCreator {
public:
    const char *getPluginName() const noexcept override { return TYPE; }
    const char *getPluginVersion() const noexcept override { return VERSION; }
    const PluginFieldCollection *getFieldNames() noexcept override { return &collection_; }

    nvinfer1::IPluginV2 *createPlugin(const char *, const PluginFieldCollection *fields) noexcept override {
        return made([&] {
            Stored stored;
            require(fields != nullptr, "fields", "null", "a list");
            stored.attributes = of(*fields);
            return stored;
        });
    }
    nvinfer1::IPluginV2 *deserializePlugin(const char *, const void *data, std::size_t size) noexcept override {
        return made([&] { return read(data, size); });
    }
    void setPluginNamespace(const char *space) noexcept override {
        try {
            space_ = space == nullptr ? "" : space;
        } catch (...) {
            refuse("there is no memory for the namespace");
        }
    }
    const char *getPluginNamespace() const noexcept override { return space_.c_str(); }

private:
    template <class Body>
    nvinfer1::IPluginV2 *made(const Body &body) noexcept {
        return guarded<nvinfer1::IPluginV2 *>(nullptr, [&] { return new Plugin(body(), space_); });
    }

    std::array<PluginField, 11> fields_{{
        {"num_heads", nullptr, PluginFieldType::kINT32, 1},
        {"kv_num_heads", nullptr, PluginFieldType::kINT32, 1},
        {"scale", nullptr, PluginFieldType::kFLOAT32, 1},
        {"softcap", nullptr, PluginFieldType::kFLOAT32, 1},
        {"is_causal", nullptr, PluginFieldType::kINT32, 1},
        {"align_last", nullptr, PluginFieldType::kINT32, 1},
        {"packed", nullptr, PluginFieldType::kINT32, 1},
        {"window", nullptr, PluginFieldType::kINT32, 2},
        {"grid", nullptr, PluginFieldType::kINT32, 2},
        {"picture", nullptr, PluginFieldType::kINT32, 2},
        {"shift", nullptr, PluginFieldType::kINT32, 2},
    }};
    PluginFieldCollection collection_{static_cast<std::int32_t>(fields_.size()), fields_.data()};
    std::string space_;
};

REGISTER_TENSORRT_PLUGIN(Creator);

} // namespace
