// Nodes of type ElsaAttention: attributes, which TensorRT passes as fields, their serialised form, inputs, and the
// resulting problem. Invalid arguments are refused by name.
#ifndef NODE_HPP
#define NODE_HPP

#include <NvInferRuntime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <elsa.hpp>
#include <string>
#include <vector>

namespace node {

using nvinfer1::DataType;
using nvinfer1::PluginField;
using nvinfer1::PluginFieldCollection;
using nvinfer1::PluginFieldType;
using nvinfer1::PluginTensorDesc;

// Maximum number of inputs: q, k, v, mask and table.
const std::int32_t MOST_INPUTS = 5;

// Reason for a refusal: thrown inside the plugin, and caught before it leaves it.
struct refused {
    std::string why;
};

// ---- Attributes

// An optional list of two numbers.
struct Pair {
    std::int32_t given = 0;
    std::int64_t at[2] = {0, 0};
};

// Attributes of a node, with their names in the operator.
struct Attributes {
    std::int32_t num_heads = 0, kv_num_heads = 0;  // 0: not given
    std::int32_t has_scale = 0;
    float scale = 0, softcap = 0;
    std::int32_t is_causal = 0, align_last = 0, packed = 0;
    Pair window, grid, picture, shift;
};

inline std::string text(const Pair &pair) { return std::to_string(pair.at[0]) + ", " + std::to_string(pair.at[1]); }

inline void require(bool good, const char *name, const std::string &found, const char *allowed) {
    if (!good) {
        throw refused{std::string(name) + ": " + found + "; allowed: " + allowed};
    }
}

// Checks all constraints that do not depend on shapes.
inline void check(const Attributes &a) {
    const auto flag = [](std::int32_t value) { return value == 0 || value == 1; };
    const std::int32_t most_heads = 1 << 20;
    const std::int64_t most = std::int64_t(1) << 30;
    require(a.num_heads >= 0 && a.num_heads <= most_heads, "num_heads", std::to_string(a.num_heads), "1 to 1048576");
    require(a.kv_num_heads >= 0 && a.kv_num_heads <= most_heads, "kv_num_heads", std::to_string(a.kv_num_heads),
            "1 to 1048576");
    require(a.num_heads == 0 || a.kv_num_heads == 0 || a.num_heads % a.kv_num_heads == 0, "kv_num_heads",
            std::to_string(a.kv_num_heads), "a divisor of num_heads");
    require(flag(a.has_scale) && std::isfinite(a.scale), "scale", std::to_string(a.scale), "a finite number");
    require(std::isfinite(a.softcap) && a.softcap >= 0, "softcap", std::to_string(a.softcap), "a finite number from 0");
    require(flag(a.is_causal), "is_causal", std::to_string(a.is_causal), "0 or 1");
    require(flag(a.align_last), "align_last", std::to_string(a.align_last), "0 or 1");
    require(!a.align_last || a.is_causal, "align_last", "1", "with is_causal");
    require(flag(a.packed), "packed", std::to_string(a.packed), "0 or 1");
    require(!a.packed || a.num_heads > 0, "packed", "1", "with num_heads");
    require(!a.packed || a.kv_num_heads == 0 || a.kv_num_heads == a.num_heads, "kv_num_heads",
            std::to_string(a.kv_num_heads), "num_heads, where packed is 1");
    for (int axis = 0; axis < 2; ++axis) {
        const auto in = [&](const Pair &pair, std::int64_t least, std::int64_t below) {
            return !pair.given || (pair.at[axis] >= least && pair.at[axis] < below);
        };
        require(flag(a.window.given) && in(a.window, -1, most), "window", text(a.window), "two numbers from -1");
        require(flag(a.grid.given) && in(a.grid, 1, most), "grid", text(a.grid), "two numbers from 1");
        require(flag(a.picture.given) && in(a.picture, 1, most), "picture", text(a.picture), "two numbers from 1");
        require(flag(a.shift.given) && in(a.shift, 0, most), "shift", text(a.shift), "two numbers from 0");
        require(!a.picture.given || (a.grid.given && a.picture.at[axis] % a.grid.at[axis] == 0), "picture",
                text(a.picture), "multiples of the sides of grid");
        require(!a.shift.given || (a.picture.given && a.shift.at[axis] < a.grid.at[axis]), "shift", text(a.shift),
                "less than the sides of grid, with picture");
    }
}

// Returns the elements of a field as whole numbers.
inline std::vector<std::int64_t> whole(const PluginField &field) {
    std::vector<std::int64_t> found;
    require(field.data != nullptr && field.length >= 1 && field.length <= 2, field.name,
            std::to_string(field.length) + " elements", "1 or 2");
    for (std::int32_t i = 0; i < field.length; ++i) {
        if (field.type == PluginFieldType::kINT32) {
            found.push_back(static_cast<const std::int32_t *>(field.data)[i]);
#if NV_TENSORRT_MAJOR >= 10
        } else if (field.type == PluginFieldType::kINT64) {
            found.push_back(static_cast<const std::int64_t *>(field.data)[i]);
#endif
        } else {
            require(false, field.name, "elements of type " + std::to_string(static_cast<int>(field.type)), "integers");
        }
    }
    return found;
}

inline std::int32_t integer(const PluginField &field) {
    const std::vector<std::int64_t> found = whole(field);
    require(found.size() == 1 && found[0] >= 0 && found[0] < (std::int64_t(1) << 31), field.name,
            std::to_string(found[0]), "one number from 0");
    return static_cast<std::int32_t>(found[0]);
}

inline float real(const PluginField &field) {
    require(field.data != nullptr && field.length == 1 && field.type == PluginFieldType::kFLOAT32, field.name,
            std::to_string(field.length) + " elements of type " + std::to_string(static_cast<int>(field.type)),
            "one float");
    return *static_cast<const float *>(field.data);
}

inline Pair pair(const PluginField &field) {
    const std::vector<std::int64_t> found = whole(field);
    require(found.size() == 2, field.name, std::to_string(found.size()) + " elements", "2");
    Pair made;
    made.given = 1;
    std::copy(found.begin(), found.end(), made.at);
    return made;
}

inline Attributes of(const PluginFieldCollection &fields) {
    Attributes a;
    require(fields.nbFields >= 0 && (fields.nbFields == 0 || fields.fields != nullptr), "fields",
            std::to_string(fields.nbFields), "a list");
    for (std::int32_t i = 0; i < fields.nbFields; ++i) {
        const PluginField &field = fields.fields[i];
        const std::string name = field.name == nullptr ? "" : field.name;
        if (name == "num_heads") {
            a.num_heads = integer(field);
            require(a.num_heads > 0, "num_heads", "0", "1 to 1048576");
        } else if (name == "kv_num_heads") {
            a.kv_num_heads = integer(field);
            require(a.kv_num_heads > 0, "kv_num_heads", "0", "1 to 1048576");
        } else if (name == "scale") {
            a.has_scale = 1;
            a.scale = real(field);
        } else if (name == "softcap") {
            a.softcap = real(field);
        } else if (name == "is_causal") {
            a.is_causal = integer(field);
        } else if (name == "align_last") {
            a.align_last = integer(field);
        } else if (name == "packed") {
            a.packed = integer(field);
        } else if (name == "window") {
            a.window = pair(field);
        } else if (name == "grid") {
            a.grid = pair(field);
        } else if (name == "picture") {
            a.picture = pair(field);
        } else if (name == "shift") {
            a.shift = pair(field);
        } else {
            throw refused{"attribute " + name +
                          ": unknown; allowed: num_heads, kv_num_heads, scale, softcap, is_causal, align_last, packed, window, "
                          "grid, picture, shift"};
        }
    }
    check(a);
    return a;
}

// ---- Serialised form: these 4-byte and 8-byte numbers, in this order, in the machine's representation.

const std::uint32_t MARK = 0x41534c45;
const std::uint32_t FORM = 2;
// Larger than the memory of any device.
const std::uint64_t MOST_GRANTED = std::uint64_t(1) << 48;

// Serialised content.
struct Stored {
    Attributes attributes;
    std::int32_t inputs = 0;    // 0: not yet known from TensorRT
    std::uint64_t granted = 0;  // bytes of workspace; 0: not used
};

// Passes every number of `stored` to `each`.
template <class Kept, class Each>
void walk(Kept &stored, const Each &each) {
    auto &a = stored.attributes;
    each(a.num_heads), each(a.kv_num_heads), each(a.has_scale), each(a.scale), each(a.softcap), each(a.is_causal);
    each(a.align_last), each(a.packed);
    for (auto *pair : {&a.window, &a.grid, &a.picture, &a.shift}) {
        each(pair->given), each(pair->at[0]), each(pair->at[1]);
    }
    each(stored.inputs), each(stored.granted);
}

inline std::vector<char> written(const Stored &stored) {
    std::vector<char> bytes;
    const auto put = [&](const auto &value) {
        const char *const from = reinterpret_cast<const char *>(&value);
        bytes.insert(bytes.end(), from, from + sizeof value);
    };
    put(MARK), put(FORM);
    walk(stored, put);
    return bytes;
}

inline Stored read(const void *data, std::size_t size) {
    Stored stored;
    const std::size_t needed = written(stored).size();
    require(data != nullptr && size == needed, "serialised plugin", std::to_string(size) + " bytes",
            (std::to_string(needed) + " bytes").c_str());
    const char *from = static_cast<const char *>(data);
    const auto take = [&](auto &value) {
        std::memcpy(&value, from, sizeof value);
        from += sizeof value;
    };
    std::uint32_t mark = 0, form = 0;
    take(mark), take(form);
    require(mark == MARK && form == FORM, "serialised plugin", "form " + std::to_string(form),
            ("form " + std::to_string(FORM) + " of ElsaAttention").c_str());
    walk(stored, take);
    check(stored.attributes);
    require(stored.inputs >= 0 && stored.inputs <= MOST_INPUTS, "inputs", std::to_string(stored.inputs), "0 to 5");
    require(stored.granted <= MOST_GRANTED, "workspace", std::to_string(stored.granted), "at most 2^48 bytes");
    return stored;
}

// ---- Inputs and shapes

// Index of each input among those that TensorRT passes; -1 if it is absent.
struct Places {
    int k = -1, v = -1, mask = -1, table = -1;
};

inline Places places(const Attributes &a, std::int32_t inputs) {
    Places found;
    const std::int32_t tensors = a.packed ? 1 : 3, table = a.grid.given ? 1 : 0;
    const std::int32_t masks = inputs - tensors - table;
    require(masks == 0 || masks == 1, "inputs", std::to_string(inputs),
            a.packed ? "queries, keys and values in one, then mask, then the table where there is a grid"
                     : "Q, K, V, then mask, then the table where there is a grid");
    if (!a.packed) found.k = 1, found.v = 2;
    if (masks == 1) found.mask = tensors;
    if (table == 1) found.table = inputs - 1;
    return found;
}

typedef std::vector<std::size_t> Shape;

inline Shape shape(const char *name, const nvinfer1::Dims &dims) {
    Shape found;
    require(dims.nbDims >= 0 && dims.nbDims <= 8, name, std::to_string(dims.nbDims) + " axes", "at most 8");
    for (std::int32_t i = 0; i < dims.nbDims; ++i) {
        require(dims.d[i] >= 0, name, "an axis of " + std::to_string(dims.d[i]), "sizes that are known");
        found.push_back(static_cast<std::size_t>(dims.d[i]));
    }
    return found;
}

inline std::size_t element(DataType type) { return type == DataType::kFLOAT ? 4 : type == DataType::kHALF ? 2 : 1; }

// Returns the bytes of a tensor. TensorRT checks the sum over all tensors, because it allocates them.
inline std::size_t bytes(const Shape &shape, DataType type) {
    std::size_t count = element(type);
    for (const std::size_t axis : shape) count *= axis;
    return count;
}

inline elsa_mask_kind kind(const char *name, DataType type, bool additive) {
    switch (type) {
    case DataType::kFLOAT:
        return ELSA_MASK_F32;
    case DataType::kHALF:
        return ELSA_MASK_F16;
    default:
        require(type == DataType::kBOOL && !additive, name, "type " + std::to_string(static_cast<int>(type)),
                additive ? "float or half" : "bool, float or half");
        return ELSA_MASK_BOOL;
    }
}

inline elsa_view strided(std::size_t batch, std::size_t heads, std::size_t tokens, std::size_t dim, std::size_t per_batch,
                  std::size_t per_head, std::size_t per_token) {
    return elsa_view{{batch, heads, tokens, dim}, {per_batch, per_head, per_token, 1}};
}

// Returns the view of a tensor [batch, heads, tokens, dim], or [batch, tokens, heads * dim].
inline elsa_view view(const char *name, const char *heads_name, const Shape &s, std::size_t heads) {
    if (s.size() == 4) {
        require(heads == 0 || heads == s[1], heads_name, std::to_string(heads),
                ("the heads of " + std::string(name) + ", " + std::to_string(s[1])).c_str());
        return strided(s[0], s[1], s[2], s[3], s[1] * s[2] * s[3], s[2] * s[3], s[3]);
    }
    require(s.size() == 3, name, std::to_string(s.size()) + " axes", "4, or 3 with num_heads");
    require(heads > 0, heads_name, "absent", "given, where tensors have 3 axes");
    require(s[2] % heads == 0, name, "a last axis of " + std::to_string(s[2]),
            ("a multiple of the " + std::to_string(heads) + " heads").c_str());
    return strided(s[0], heads, s[1], s[2] / heads, s[1] * s[2], s[2] / heads, s[2]);
}

// A call: its problem, and the byte offsets of keys and values if they are in the first tensor.
struct Call {
    elsa_problem problem;
    Places at;
    std::size_t sizes[MOST_INPUTS], out;
    std::size_t key_offset = 0, value_offset = 0;
};

inline Call call(const Attributes &a, const PluginTensorDesc *in, std::int32_t inputs, const PluginTensorDesc &out) {
    Call c;
    c.at = places(a, inputs);
    elsa_problem &p = c.problem;
    elsa_problem_init(&p);
    const DataType type = in[0].type;
    require(type == DataType::kFLOAT || type == DataType::kHALF, "Q", "type " + std::to_string(static_cast<int>(type)),
            "float or half");
    p.dtype = type == DataType::kHALF ? ELSA_DTYPE_F16 : ELSA_DTYPE_F32;
    for (std::int32_t i = 0; i < inputs; ++i) {
        c.sizes[i] = bytes(shape("input", in[i].dims), in[i].type);
        const bool tensor = i == 0 || i == c.at.k || i == c.at.v;
        require(!tensor || in[i].type == type, i == 1 ? "K" : "V", "another type than Q", "the same");
    }
    require(out.type == type, "Y", "another type than Q", "the same");
    c.out = bytes(shape("Y", out.dims), type);

    const Shape q = shape("Q", in[0].dims);
    const std::size_t heads = static_cast<std::size_t>(a.num_heads);
    const std::size_t kv_heads = a.kv_num_heads != 0 ? static_cast<std::size_t>(a.kv_num_heads) : heads;
    if (a.packed) {
        require(q.size() == 3 && q[2] % (3 * heads) == 0, "Q", std::to_string(q.size()) + " axes",
                "[batch, tokens, 3 * heads * dim], where packed is 1");
        const std::size_t dim = q[2] / 3 / heads;
        p.q = p.k = p.v = strided(q[0], heads, q[1], dim, q[1] * q[2], dim, q[2]);
        p.out = strided(q[0], heads, q[1], dim, q[1] * q[2] / 3, dim, q[2] / 3);
        c.key_offset = q[2] / 3 * element(type);
        c.value_offset = 2 * c.key_offset;
    } else {
        p.q = view("Q", "num_heads", q, heads);
        // The keys' heads are those of the tensor if it has 4 axes.
        const std::size_t given = q.size() == 3 ? kv_heads : static_cast<std::size_t>(a.kv_num_heads);
        const Shape k = shape("K", in[1].dims), v = shape("V", in[2].dims);
        require(k.size() == q.size() && v.size() == q.size(), "K, V",
                std::to_string(k.size()) + " and " + std::to_string(v.size()) + " axes", "as many as Q has");
        p.k = view("K", "kv_num_heads", k, given);
        p.v = view("V", "kv_num_heads", v, given);
        Shape y = q;
        y[q.size() - 1] = q.size() == 4 ? v[3] : heads * p.v.shape[3];
        p.out = view("Y", "num_heads", y, heads);
    }
    require(c.out == elsa::extent(p.out) * element(type), "Y", std::to_string(c.out) + " bytes",
            "those of Q with the last axis of V");
    p.has_scale = static_cast<std::uint32_t>(a.has_scale);
    p.scale = a.scale;
    p.softcap = a.softcap;
    const std::uint32_t aligned = a.align_last ? ELSA_CAUSAL_BOTTOM_RIGHT : ELSA_CAUSAL_TOP_LEFT;
    p.causal = a.is_causal ? aligned : ELSA_CAUSAL_NONE;
    if (a.window.given) {
        p.has_window_left = a.window.at[0] >= 0;
        p.window_left = std::max<std::int64_t>(a.window.at[0], 0);
        p.has_window_right = a.window.at[1] >= 0;
        p.window_right = std::max<std::int64_t>(a.window.at[1], 0);
    }
    if (c.at.mask >= 0) {
        const PluginTensorDesc &mask = in[c.at.mask];
        const Shape s = shape("mask", mask.dims);
        require(!s.empty() && s.size() <= 4, "mask", std::to_string(s.size()) + " axes", "1 to 4");
        p.mask.kind = kind("mask", mask.type, false);
        p.mask.rank = static_cast<std::uint32_t>(s.size());
        std::copy(s.begin(), s.end(), p.mask.dims);
    }
    if (c.at.table >= 0) {
        const PluginTensorDesc &table = in[c.at.table];
        const Shape s = shape("bias_table", table.dims);
        const std::size_t rows = static_cast<std::size_t>(a.grid.at[0]), columns = static_cast<std::size_t>(a.grid.at[1]);
        const std::size_t entries = (2 * rows - 1) * (2 * columns - 1);
        require(s.size() == 2 && s[0] == entries, "bias_table", std::to_string(s.size()) + " axes",
                ("[" + std::to_string(entries) + ", heads], as grid says").c_str());
        kind("bias_table", table.type, true);
        p.bias_table.dtype = table.type == DataType::kHALF ? ELSA_DTYPE_F16 : ELSA_DTYPE_F32;
        p.bias_table.entries = entries;
        p.bias_table.heads = s[1];
        const Pair &picture = a.picture.given ? a.picture : a.grid;
        for (int axis = 0; axis < 2; ++axis) {
            p.windows.picture[axis] = static_cast<std::size_t>(picture.at[axis]);
            p.windows.size[axis] = static_cast<std::size_t>(a.grid.at[axis]);
            p.windows.shift[axis] = static_cast<std::size_t>(a.shift.at[axis]);
        }
    }
    return c;
}

} // namespace node

#endif
