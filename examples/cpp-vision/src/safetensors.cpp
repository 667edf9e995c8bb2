#include "safetensors.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

static_assert(std::numeric_limits<float>::is_iec559, "the file holds IEEE 754 single precision");

namespace vision {
namespace {

using nlohmann::json;

/// Longest header: the limit of the format's own library.
const std::uint64_t max_header = 100000000;
/// Longest file, far above any model for a board.
const std::streamoff max_file = std::streamoff(1) << 31;

/// Bytes of an element, 0 for a type outside the format.
std::size_t width(const std::string &dtype) {
    static const std::map<std::string, std::size_t> widths = {
        {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
        {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8},
    };
    const auto at = widths.find(dtype);
    return at == widths.end() ? 0 : at->second;
}

bool whole(const json &value, std::size_t &to) {
    if (!value.is_number_unsigned()) {
        return false;
    }
    const auto number = value.get<std::uint64_t>();
    to = static_cast<std::size_t>(number);
    return to == number;
}

std::string text(const std::vector<std::size_t> &shape) {
    std::string all;
    for (const auto n : shape) {
        all += (all.empty() ? "" : ", ") + std::to_string(n);
    }
    return "[" + all + "]";
}

std::vector<std::size_t> long_axes(std::vector<std::size_t> shape) {
    shape.erase(std::remove(shape.begin(), shape.end(), std::size_t(1)), shape.end());
    return shape;
}

std::uint64_t little_endian(const std::uint8_t *bytes, unsigned count) {
    std::uint64_t value = 0;
    for (unsigned i = 0; i < count; ++i) {
        value |= std::uint64_t(bytes[i]) << (8 * i);
    }
    return value;
}

} // namespace

Error SafeTensors::bad(const std::string &found) const {
    return refused("model: " + name_, found, "a safetensors file");
}

SafeTensors SafeTensors::open(const std::string &path) {
    const std::string allowed = "a readable safetensors file";
    errno = 0;
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) {
        throw file_error("model: " + path, errno, allowed);
    }
    const std::streamoff size = file.tellg();
    if (size < 0 || size > max_file) {
        throw refused("model: " + path, "no file, or too long a one", allowed);
    }
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
    errno = 0;
    file.seekg(0);
    if (!file.read(reinterpret_cast<char *>(bytes.data()), size)) {
        throw file_error("model: " + path, errno, allowed);
    }
    return SafeTensors(path, std::move(bytes));
}

SafeTensors::SafeTensors(std::string name, std::vector<std::uint8_t> bytes)
    : name_(std::move(name)), bytes_(std::move(bytes)) {
    if (bytes_.size() < 8) {
        throw bad(std::to_string(bytes_.size()) + " bytes");
    }
    const std::uint64_t length = little_endian(bytes_.data(), 8);
    if (length > max_header || length > bytes_.size() - 8) {
        throw bad("a header of " + std::to_string(length) + " bytes in " + std::to_string(bytes_.size()));
    }
    data_ = 8 + static_cast<std::size_t>(length);
    const char *start = reinterpret_cast<const char *>(bytes_.data());
    const json header = json::parse(start + 8, start + data_, nullptr, false);
    if (!header.is_object()) {
        throw bad("a header that is no JSON object");
    }
    for (auto item = header.begin(); item != header.end(); ++item) {
        const json &value = item.value();
        if (item.key() == "__metadata__") {
            if (!value.is_object()) {
                throw bad("metadata that are no object");
            }
            for (auto fact = value.begin(); fact != value.end(); ++fact) {
                if (!fact.value().is_string()) {
                    throw bad("metadata " + fact.key() + " that is no string");
                }
                metadata_[fact.key()] = fact.value().get<std::string>();
            }
            continue;
        }
        const std::string where = "tensor " + item.key();
        const auto of = [&](const char *key) { return value.is_object() ? value.value(key, json()) : json(); };
        const json dtype = of("dtype"), shape = of("shape"), offsets = of("data_offsets");
        Entry entry{};
        if (!dtype.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2 ||
            !whole(offsets[0], entry.begin) || !whole(offsets[1], entry.end)) {
            throw bad(where + " without dtype, shape or data_offsets");
        }
        entry.dtype = dtype.get<std::string>();
        std::size_t size = width(entry.dtype);
        if (size == 0) {
            throw bad(where + " of type " + entry.dtype);
        }
        for (const json &axis : shape) {
            std::size_t n = 0;
            if (!whole(axis, n) || (n != 0 && size > std::numeric_limits<std::size_t>::max() / n)) {
                throw bad(where + " with shape " + shape.dump());
            }
            size *= n;
            entry.shape.push_back(n);
        }
        if (entry.begin > entry.end || entry.end > bytes_.size() - data_ || entry.end - entry.begin != size) {
            throw bad(where + " " + text(entry.shape) + " at " + offsets.dump());
        }
        tensors_[item.key()] = std::move(entry);
    }
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (const auto &tensor : tensors_) {
        ranges.emplace_back(tensor.second.begin, tensor.second.end);
    }
    std::sort(ranges.begin(), ranges.end());
    std::size_t next = 0;
    for (const auto &range : ranges) {
        if (range.first != next) {
            throw bad("a gap or an overlap at byte " + std::to_string(next) + " of the data");
        }
        next = range.second;
    }
    if (next != bytes_.size() - data_) {
        throw bad(std::to_string(bytes_.size() - data_ - next) + " bytes that belong to no tensor");
    }
}

std::size_t SafeTensors::rows(const std::string &tensor) const {
    const auto at = tensors_.find(tensor);
    if (at == tensors_.end() || at->second.shape.empty() || at->second.shape[0] == 0) {
        throw refused("model: tensor " + tensor, "absent or empty", "at least one row");
    }
    return at->second.shape[0];
}

std::vector<float> SafeTensors::f32(const std::string &tensor, const std::vector<std::size_t> &shape) const {
    const std::string what = "model: tensor " + tensor, allowed = "finite F32 " + text(shape);
    const auto at = tensors_.find(tensor);
    if (at == tensors_.end()) {
        throw refused(what, "absent", allowed);
    }
    const Entry &entry = at->second;
    if (entry.dtype != "F32" || long_axes(entry.shape) != long_axes(shape)) {
        throw refused(what, entry.dtype + " " + text(entry.shape), allowed);
    }
    std::vector<float> all((entry.end - entry.begin) / 4);
    for (std::size_t i = 0; i < all.size(); ++i) {
        const auto bits = static_cast<std::uint32_t>(little_endian(&bytes_[data_ + entry.begin + 4 * i], 4));
        std::memcpy(&all[i], &bits, 4);
        if (!std::isfinite(all[i])) {
            throw refused(what, "an infinity or NaN", allowed);
        }
    }
    return all;
}

std::size_t SafeTensors::number(const std::string &key) const {
    const auto at = metadata_.find(key);
    const std::string found = at == metadata_.end() ? "absent" : "\"" + at->second + "\"";
    const bool digits = at != metadata_.end() && !at->second.empty() && at->second.size() < 10 &&
                        at->second.find_first_not_of("0123456789") == std::string::npos;
    const unsigned long value = digits ? std::strtoul(at->second.c_str(), nullptr, 10) : 0;
    if (value == 0) {
        throw refused("model: metadata " + key, found, "a positive whole number");
    }
    return value;
}

} // namespace vision
