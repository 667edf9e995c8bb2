// elsa: tensors in the memory of other libraries; the headers opencv_cuda.hpp, dlpack.hpp, tensorrt.hpp and
// nvbufsurface.hpp make them.
#ifndef ELSA_STRIDED_HPP
#define ELSA_STRIDED_HPP

#include "common.hpp"

#include <cstddef>
#include <string>

namespace elsa {
inline namespace ELSA_NAMESPACE {

// Elements in memory that another object owns, and their view. The memory must stay valid until every run is complete.
// It may be passed wherever a std::vector<T> may, to elsa::input and to elsa::output.
template <class T>
class strided : private detail::check_tensor<T> {
public:
    strided() noexcept : view_(), data_(nullptr) {}
    strided(const elsa_view &described, T *memory) noexcept : view_(described), data_(memory) {}

    const elsa_view &view() const noexcept { return view_; }
    T *data() const noexcept { return data_; }
    // Returns the number of elements from the first to the last of the view.
    std::size_t size() const noexcept { return extent(view_); }

private:
    elsa_view view_;
    T *data_;
};

namespace detail {

inline status refused(const char *argument, const std::string &why) {
    return status(ELSA_STATUS_ARGUMENT, std::string(argument) + ": " + why);
}

// Returns rows of `bytes` bytes, `pitch` bytes apart, as a tensor. The rows are the tokens of one sequence after
// another, and a row has the elements of all heads.
template <class T>
result<strided<T>> rows_of(const char *argument, void *data, std::size_t rows, std::size_t bytes, std::size_t pitch,
                           std::size_t heads, std::size_t batch) {
    const std::size_t width = bytes / sizeof(T), step = pitch / sizeof(T);
    if (data == nullptr) {
        return refused(argument, "null; allowed: memory of a device");
    }
    if (batch == 0 || rows % batch != 0) {
        return refused(argument, std::to_string(rows) + " rows; allowed: a multiple of the batch, " +
                                     std::to_string(batch));
    }
    if (bytes % sizeof(T) != 0 || heads == 0 || width % heads != 0) {
        return refused(argument, "rows of " + std::to_string(bytes) + " bytes; allowed: a multiple of " +
                                     std::to_string(heads) + " heads and of elements of " + std::to_string(sizeof(T)) +
                                     " bytes");
    }
    if (pitch % sizeof(T) != 0 || (rows > 1 && step < width)) {
        return refused(argument, "pitch of " + std::to_string(pitch) + " bytes; allowed: a multiple of " +
                                     std::to_string(sizeof(T)) + ", at least " + std::to_string(bytes));
    }
    const std::size_t tokens = rows / batch, dim = width / heads;
    const elsa_view made = {{batch, heads, tokens, dim}, {tokens * step, dim, step, 1}};
    return strided<T>(made, static_cast<T *>(data));
}

// Returns a tensor with 2 to 4 axes, which are the last axes of `layout`. Two axes are tokens and elements of a head.
// The strides are in elements; if they are null, the tensor is dense.
template <class T, class Integer>
result<strided<T>> axes_of(const char *argument, void *data, int rank, const Integer *shape, const Integer *strides,
                           elsa_layout layout) {
    if (layout != ELSA_LAYOUT_BHND && layout != ELSA_LAYOUT_BNHD) {
        return refused(argument, "layout " + std::to_string(layout) +
                                     "; allowed: ELSA_LAYOUT_BHND or ELSA_LAYOUT_BNHD");
    }
    if (rank < 2 || rank > 4) {
        return refused(argument, "rank " + std::to_string(rank) + "; allowed: 2, 3 or 4");
    }
    if (data == nullptr) {
        return refused(argument, "null; allowed: memory of a device");
    }
    // Axis of the view for each axis of [batch, heads, tokens, dim] or [batch, tokens, heads, dim].
    const int axes[2][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}};
    const bool tokens_first = layout == ELSA_LAYOUT_BNHD && rank > 2;
    elsa_view made = {{1, 1, 1, 1}, {0, 0, 0, 1}};
    std::size_t dense = 1;
    for (int axis = rank - 1; axis >= 0; --axis) {
        const long long length = shape[axis];
        const long long stride = strides == nullptr ? static_cast<long long>(dense) : strides[axis];
        const std::string where = " along axis " + std::to_string(axis);
        if (length < 0) {
            return refused(argument, "length " + std::to_string(length) + where + "; allowed: a length that is set");
        }
        if (length > 1 && (stride < 0 || (axis == rank - 1 && stride != 1))) {
            const char *allowed = axis == rank - 1 ? "; allowed: 1; copy the tensor so that this axis is dense"
                                                   : "; allowed: 0 or more";
            return refused(argument, "stride " + std::to_string(stride) + where + allowed);
        }
        const int to = axes[tokens_first ? 1 : 0][axis + 4 - rank];
        made.shape[to] = static_cast<std::size_t>(length);
        made.strides[to] = length > 1 ? static_cast<std::size_t>(stride) : made.strides[to];
        dense *= made.shape[to];
    }
    return strided<T>(made, static_cast<T *>(data));
}

} // namespace detail

} // inline namespace
} // namespace elsa

#endif
