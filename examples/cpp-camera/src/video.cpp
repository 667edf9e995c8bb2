#include "video.hpp"

#include "error.hpp"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <linux/videodev2.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace camera {
namespace {

/// Pictures that the camera may fill ahead, and the time after which one that does not come is an error.
const unsigned buffers = 4;
const int patience_ms = 5000;
const std::uint32_t first_width = 640, first_height = 480;

class Video : public Source {
public:
    explicit Video(const std::string &device) : name_(device) {
        file_ = open(device.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
        if (file_ < 0) {
            throw vision::file_error("--video: " + device, errno, "a camera of V4L2");
        }
        try {
            start();
        } catch (...) {
            stop();
            throw;
        }
    }
    ~Video() override { stop(); }

    std::size_t bytes() const noexcept override { return bytes_of(FORMAT_NV12, width_, height_); }
    std::size_t count() const noexcept override { return 0; }

    Shot take(std::uint64_t, const Shared &room) override {
        v4l2_buffer buffer = described(0);
        while (ioctl(file_, VIDIOC_DQBUF, &buffer) != 0) {
            if (errno != EAGAIN && errno != EINTR) {
                fail("VIDIOC_DQBUF");
            }
            pollfd waited = {file_, POLLIN, 0};
            const int ready = poll(&waited, 1, patience_ms);
            if (ready == 0 || (ready < 0 && errno != EINTR)) {
                throw vision::Error(vision::Fault::system, name_ + ": no picture within " +
                                                               std::to_string(patience_ms) + " ms");
            }
        }
        write(static_cast<const std::uint8_t *>(mapped_[buffer.index].memory), room.data);
        if (ioctl(file_, VIDIOC_QBUF, &buffer) != 0) {
            fail("VIDIOC_QBUF");
        }
        const Address pairs = room.address + static_cast<Address>(width_) * static_cast<Address>(height_);
        return {nv12(room.address, pairs, width_, width_, width_, height_, Standard::bt601_video), &name_, -1};
    }

private:
    struct Mapped {
        void *memory = MAP_FAILED;
        std::size_t bytes = 0;
    };

    [[noreturn]] void fail(const char *call) const {
        throw vision::Error(vision::Fault::system, name_ + ": " + call + ": " + std::strerror(errno));
    }

    static v4l2_buffer described(unsigned index) noexcept {
        v4l2_buffer buffer = v4l2_buffer();
        buffer.type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
        buffer.memory = V4L2_MEMORY_MMAP;
        buffer.index = index;
        return buffer;
    }

    /// Returns whether the camera has the format, and sets it.
    bool set(std::uint32_t pixels) {
        v4l2_format format = v4l2_format();
        format.type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
        format.fmt.pix.width = first_width;
        format.fmt.pix.height = first_height;
        format.fmt.pix.pixelformat = pixels;
        format.fmt.pix.field = V4L2_FIELD_NONE;
        if (ioctl(file_, VIDIOC_S_FMT, &format) != 0 || format.fmt.pix.pixelformat != pixels) {
            return false;
        }
        const v4l2_pix_format &set = format.fmt.pix;
        if (set.width == 0 || set.height == 0 || set.width % 2 != 0 || set.height % 2 != 0 || set.width > most_side ||
            set.height > most_side) {
            throw vision::Error(vision::Fault::system, name_ + ": pictures of " + std::to_string(set.width) + " x " +
                                                           std::to_string(set.height) +
                                                           "; allowed: even sides of at most 8192");
        }
        width_ = static_cast<int>(set.width);
        height_ = static_cast<int>(set.height);
        pitch_ = set.bytesperline;
        yuyv_ = pixels == V4L2_PIX_FMT_YUYV;
        return true;
    }

    /// Returns the bytes of a picture as the camera stores it.
    std::size_t stored() const noexcept {
        const std::size_t height = static_cast<std::size_t>(height_);
        return pitch_ * (yuyv_ ? height : height + height / 2);
    }

    void start() {
        if (!set(V4L2_PIX_FMT_NV12) && !set(V4L2_PIX_FMT_YUYV)) {
            throw vision::refused("--video: " + name_, "neither NV12 nor YUYV", "a camera of V4L2 with one of them");
        }
        v4l2_requestbuffers wanted = v4l2_requestbuffers();
        wanted.count = buffers;
        wanted.type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
        wanted.memory = V4L2_MEMORY_MMAP;
        if (ioctl(file_, VIDIOC_REQBUFS, &wanted) != 0) {
            fail("VIDIOC_REQBUFS");
        }
        mapped_.resize(wanted.count);
        for (unsigned i = 0; i < wanted.count; ++i) {
            v4l2_buffer buffer = described(i);
            if (ioctl(file_, VIDIOC_QUERYBUF, &buffer) != 0) {
                fail("VIDIOC_QUERYBUF");
            }
            Mapped &at = mapped_[i];
            at.bytes = buffer.length;
            at.memory = mmap(nullptr, at.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, buffer.m.offset);
            if (at.memory == MAP_FAILED || at.bytes < stored()) {
                fail("mmap");
            }
            if (ioctl(file_, VIDIOC_QBUF, &buffer) != 0) {
                fail("VIDIOC_QBUF");
            }
        }
        int type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
        if (ioctl(file_, VIDIOC_STREAMON, &type) != 0) {
            fail("VIDIOC_STREAMON");
        }
    }

    void stop() noexcept {
        int type = V4L2_BUF_TYPE_VIDEO_CAPTURE;
        ioctl(file_, VIDIOC_STREAMOFF, &type);
        for (const Mapped &at : mapped_) {
            if (at.memory != MAP_FAILED) {
                munmap(at.memory, at.bytes);
            }
        }
        close(file_);
    }

    void write(const std::uint8_t *from, std::uint8_t *to) const noexcept {
        const std::size_t width = static_cast<std::size_t>(width_), height = static_cast<std::size_t>(height_);
        if (yuyv_) {
            nv12_of_yuyv(from, pitch_, width, height, to);
            return;
        }
        for (std::size_t row = 0; row < height + height / 2; ++row) {
            std::memcpy(to + row * width, from + row * pitch_, width);
        }
    }

    static constexpr std::uint32_t most_side = 8192;

    std::string name_;
    int file_ = -1, width_ = 0, height_ = 0;
    std::size_t pitch_ = 0;
    bool yuyv_ = false;
    std::vector<Mapped> mapped_;
};

} // namespace

void nv12_of_yuyv(const std::uint8_t *from, std::size_t pitch, std::size_t width, std::size_t height,
                  std::uint8_t *to) {
    std::uint8_t *pairs = to + width * height;
    for (std::size_t y = 0; y < height; ++y) {
        for (std::size_t x = 0; x < width; ++x) {
            to[y * width + x] = from[y * pitch + 2 * x];
        }
    }
    for (std::size_t y = 0; y < height; y += 2) {
        for (std::size_t x = 0; x < width; ++x) {
            const unsigned sum = unsigned(from[y * pitch + 2 * x + 1]) + from[(y + 1) * pitch + 2 * x + 1];
            pairs[y / 2 * width + x] = static_cast<std::uint8_t>((sum + 1) / 2);
        }
    }
}

std::unique_ptr<Source> video(const std::string &device) { return std::unique_ptr<Source>(new Video(device)); }

} // namespace camera
