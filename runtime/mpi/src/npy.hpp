// Arrays in .npy files, read and written by parts.
#ifndef ELSA_MPI_NPY_HPP
#define ELSA_MPI_NPY_HPP

#include <elsa.hpp>

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace npy {

// A file descriptor that is closed at the end.
class file {
public:
    explicit file(int descriptor = -1) noexcept : descriptor_(descriptor) {}
    file(file &&other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
    file &operator=(file &&other) noexcept {
        std::swap(descriptor_, other.descriptor_);
        return *this;
    }
    ~file() {
        if (descriptor_ >= 0) {
            ::close(descriptor_);
        }
    }
    int get() const noexcept { return descriptor_; }

    // Reads or writes all bytes at an offset. Returns false after a failure, with errno; EIO if the file ends early.
    bool read(void *to, std::size_t bytes, std::size_t offset) const {
        return whole(bytes, [&](std::size_t at) {
            return ::pread(descriptor_, static_cast<char *>(to) + at, bytes - at, static_cast<off_t>(offset + at));
        });
    }
    bool write(const void *from, std::size_t bytes, std::size_t offset) const {
        return whole(bytes, [&](std::size_t at) {
            const char *data = static_cast<const char *>(from);
            return ::pwrite(descriptor_, data + at, bytes - at, static_cast<off_t>(offset + at));
        });
    }

private:
    template <class Call>
    static bool whole(std::size_t bytes, const Call &call) {
        for (std::size_t at = 0; at < bytes;) {
            const ssize_t done = call(at);
            if (done < 0 && errno == EINTR) {
                continue;
            }
            if (done <= 0) {
                errno = done == 0 ? EIO : errno;
                return false;
            }
            at += static_cast<std::size_t>(done);
        }
        return true;
    }

    int descriptor_;
};

// An array whose elements stay in its file.
struct array {
    std::string flag, path;
    file from;
    std::size_t start = 0, element = 0;
    // '<f4', '|b1' or '|u1'.
    std::string type;
    std::vector<std::size_t> shape;

    elsa::status failed(const std::string &found, const std::string &allowed) const {
        return elsa::status(ELSA_STATUS_ARGUMENT, flag + ": " + path + ": " + found + "; allowed: " + allowed);
    }

    // Opens the file that a flag names, and reads its header.
    elsa::status open(const std::string &of_flag, const std::string &of_path) {
        flag = of_flag;
        path = of_path;
        from = file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        if (from.get() < 0) {
            return failed(std::strerror(errno), "a file");
        }
        unsigned char head[12];
        if (!from.read(head, sizeof head, 0) || std::memcmp(head, "\x93NUMPY", 6) != 0) {
            return failed("no .npy file", "a file of numpy.save");
        }
        const bool old = head[6] == 1;
        std::size_t length = 0;
        for (int at = old ? 9 : 11; at >= 8; at--) {
            length = length << 8 | head[at];
        }
        start = length + (old ? 10 : 12);
        std::string text(length < (1U << 20) ? length : 0, ' ');
        if (text.empty() || !from.read(&text[0], length, old ? 10 : 12)) {
            return failed("a header that is cut short", "a file of numpy.save");
        }
        const auto after = [&](const char *key) {
            const std::size_t at = text.find(key);
            return at == std::string::npos ? std::string() : text.substr(text.find(':', at) + 1);
        };
        std::string descr = after("'descr'"), order = after("'fortran_order'"), sizes = after("'shape'");
        const std::size_t quote = descr.find('\'');
        type = quote == std::string::npos ? std::string() : descr.substr(quote + 1, 3);
        element = type == "<f4" ? 4 : type == "|b1" || type == "|u1" ? 1 : 0;
        if (element == 0) {
            return failed("type " + type, "f32, and for masks bool");
        }
        if (order.find("True") < order.find(',')) {
            return failed("Fortran order", "C order (numpy.ascontiguousarray)");
        }
        shape.clear();
        const std::size_t last = sizes.find(')');
        for (std::size_t at = sizes.find('('); at < last && last != std::string::npos;) {
            at = sizes.find_first_of("0123456789", at);
            if (at >= last) {
                break;
            }
            std::size_t axis = 0;
            for (; at < last && sizes[at] >= '0' && sizes[at] <= '9'; at++) {
                axis = axis * 10 + static_cast<std::size_t>(sizes[at] - '0');
            }
            shape.push_back(axis);
        }
        if (shape.empty() || shape.size() > 4) {
            return failed(std::to_string(shape.size()) + " axes", "1 to 4");
        }
        return elsa::status();
    }

    // Returns the sizes of [batch, heads, tokens, dim]; leading axes may be left out.
    std::vector<std::size_t> four() const {
        std::vector<std::size_t> all(4 - shape.size(), 1);
        all.insert(all.end(), shape.begin(), shape.end());
        return all;
    }

    // Reads rows `first` to `first + rows` of the third of four axes, and of the last axis `width` elements from
    // `column` on.
    elsa::status part(std::size_t first, std::size_t rows, std::size_t column, std::size_t width, void *to) const {
        const std::vector<std::size_t> all = four();
        char *at = static_cast<char *>(to);
        const bool dense = width == all[3];
        for (std::size_t plane = 0; plane < all[0] * all[1]; plane++) {
            for (std::size_t row = first; row < first + rows; row += dense ? rows : 1) {
                const std::size_t bytes = width * element * (dense ? rows : 1);
                if (!from.read(at, bytes, start + ((plane * all[2] + row) * all[3] + column) * element)) {
                    return elsa::status(ELSA_STATUS_DEVICE, flag + ": " + path + ": " + std::strerror(errno));
                }
                at += bytes;
            }
        }
        return elsa::status();
    }
};

// An f32 array that is written by parts, to a file that replaces its target at the end.
class writer {
public:
    elsa::status open(const std::string &path, const std::vector<std::size_t> &shape) {
        path_ = path;
        to_ = file(::open(part().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
        std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
        for (const std::size_t axis : shape) {
            text += std::to_string(axis) + ", ";
        }
        text += "), }";
        // The elements begin at a multiple of 64 bytes.
        text.append(63 - (10 + text.size()) % 64, ' ');
        text += '\n';
        const std::string head = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, static_cast<char>(text.size() % 256),
                                  static_cast<char>(text.size() / 256)};
        start_ = head.size() + text.size();
        const std::string bytes = head + text;
        return done(to_.get() >= 0 && to_.write(bytes.data(), bytes.size(), 0));
    }
    // Writes elements from element `at` on.
    elsa::status write(const float *data, std::size_t count, std::size_t at) {
        return done(to_.write(data, count * sizeof(float), start_ + at * sizeof(float)));
    }
    elsa::status commit() { return done(::fsync(to_.get()) == 0 && std::rename(part().c_str(), path_.c_str()) == 0); }

private:
    std::string part() const { return path_ + ".part"; }
    elsa::status done(bool good) const {
        return good ? elsa::status() : elsa::status(ELSA_STATUS_DEVICE, path_ + ": " + std::strerror(errno));
    }

    std::string path_;
    file to_;
    std::size_t start_ = 0;
};

} // namespace npy

#endif
