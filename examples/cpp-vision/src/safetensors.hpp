#pragma once

#include "error.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace vision {

/// Tensors of a safetensors file: 8 bytes with the length of a JSON header, the header, then the data. The header is
/// checked before anything is used: offsets are within the file, follow each other without gap or overlap, and agree
/// with type and shape.
class SafeTensors {
public:
    /// Reads a file. Throws Error.
    static SafeTensors open(const std::string &path);

    /// Parses the content of a file; `name` is its name in errors. Throws Error.
    SafeTensors(std::string name, std::vector<std::uint8_t> bytes);

    bool has(const std::string &tensor) const { return tensors_.count(tensor) != 0; }

    /// Returns the first axis of a tensor, at least 1. Throws Error.
    std::size_t rows(const std::string &tensor) const;

    /// Returns the elements of an f32 tensor, all finite, with this shape; axes of length one are ignored. Throws
    /// Error.
    std::vector<float> f32(const std::string &tensor, const std::vector<std::size_t> &shape) const;

    /// Returns a positive integer of the metadata. Throws Error.
    std::size_t number(const std::string &key) const;

private:
    struct Entry {
        std::string dtype;
        std::vector<std::size_t> shape;
        std::size_t begin;
        std::size_t end;
    };

    Error bad(const std::string &found) const;

    std::string name_;
    std::vector<std::uint8_t> bytes_;
    /// Offset of the data in `bytes_`.
    std::size_t data_ = 0;
    std::map<std::string, Entry> tensors_;
    std::map<std::string, std::string> metadata_;
};

} // namespace vision
