#pragma once

#include "driver.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace camera {

/// A picture in memory of a network.
struct Shot {
    Frame frame;
    /// Name of the file, or a name for the picture of a camera.
    const std::string *name;
    /// Known class, or -1.
    long label;
};

/// Something that takes pictures.
class Source {
public:
    virtual ~Source() = default;

    /// Returns the number of bytes of the largest picture.
    virtual std::size_t bytes() const noexcept = 0;

    /// Returns the number of different pictures; 0 for a camera that has no last one.
    virtual std::size_t count() const noexcept = 0;

    /// Writes picture n into a room of at least `bytes` bytes. Allocates nothing. Throws vision::Error.
    virtual Shot take(std::uint64_t n, const Shared &room) = 0;
};

/// Picture files, read and converted to a format beforehand, in a cycle.
class Files : public Source {
public:
    /// For files and folders. Throws vision::Error.
    Files(const std::vector<std::string> &paths, int format);

    std::size_t bytes() const noexcept override { return most_; }
    std::size_t count() const noexcept override { return pictures_.size(); }
    Shot take(std::uint64_t n, const Shared &room) override;

private:
    struct Picture {
        std::string path;
        long label;
        int width, height;
        std::vector<std::uint8_t> bytes;
    };

    int format_;
    std::size_t most_ = 0;
    std::vector<Picture> pictures_;
};

/// A camera that needs no device: a bright bar moves over a dark ground, from the left to the right in `steps`
/// pictures.
class Synthetic : public Source {
public:
    static constexpr std::size_t steps = 8;

    Synthetic(int format, int width, int height);

    std::size_t bytes() const noexcept override { return bytes_of(format_, width_, height_); }
    std::size_t count() const noexcept override { return steps; }
    Shot take(std::uint64_t n, const Shared &room) override;

private:
    int format_, width_, height_;
    std::string name_;
};

/// Converts pixels of R, G and B to a format. NV12 has the standard BT.601 with values from 0 to 255, and the chroma of
/// a pair is the mean of its pixels.
std::vector<std::uint8_t> converted(const std::vector<std::uint8_t> &rgb, int width, int height, int format);

} // namespace camera
