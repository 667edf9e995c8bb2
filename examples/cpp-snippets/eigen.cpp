// Tensors in Eigen matrices, read and written in place: a row-major matrix or a block of one is a tensor [tokens,
// dim] whose rows are outerStride() elements apart. Eigen::half holds the bits of f16.

#define ELSA_THROW
#include <elsa.hpp>

#include "check.hpp"

#include <Eigen/Core>

namespace elsa {
template <>
struct element<Eigen::half> : element<f16> {};
} // namespace elsa

namespace {

template <class T>
using Rows = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Part = Eigen::Ref<const Rows<T>, 0, Eigen::OuterStride<>>;

// The view of a matrix [tokens, dim] with one head.
template <class T>
elsa_view view_of(const Part<T> &m) {
    const std::size_t tokens = static_cast<std::size_t>(m.rows()), dim = static_cast<std::size_t>(m.cols());
    elsa_view view = elsa::or_throw(elsa::view(ELSA_LAYOUT_BHND, 1, 1, tokens, dim));
    view.strides[2] = static_cast<std::size_t>(m.outerStride());
    view.strides[0] = view.strides[1] = tokens * view.strides[2];
    return view;
}

template <class T>
Rows<T> attention(const elsa::engine &engine, const Part<T> &q, const Part<T> &k, const Part<T> &v) {
    Rows<T> out(q.rows(), v.cols());
    elsa::problem<T> problem;
    problem.q = view_of<T>(q);
    problem.k = view_of<T>(k);
    problem.v = view_of<T>(v);
    problem.out = view_of<T>(out);
    const elsa::plan<T> plan = elsa::or_throw(engine.plan(problem));
    const elsa::workspace workspace = elsa::or_throw(plan.workspace());
    elsa::inputs<T> inputs;
    inputs.q = {q.data(), elsa::extent(problem.q)};
    inputs.k = {k.data(), elsa::extent(problem.k)};
    inputs.v = {v.data(), elsa::extent(problem.v)};
    elsa::outputs<T> outputs;
    outputs.out = out;
    elsa::or_throw(plan.run(workspace, inputs, outputs));
    return out;
}

} // namespace

int main() {
    const Eigen::Index tokens = 40, dim = 16;
    // Queries, keys and values side by side; halves are whole 256ths, so f16 holds them exactly.
    const std::vector<float> x = check::noise(static_cast<std::size_t>(tokens * 3 * dim), 1);
    Rows<float> qkv = (Eigen::Map<const Rows<float>>(x.data(), tokens, 3 * dim) * 256.0f).array().round() / 256.0f;
    const Rows<Eigen::half> halves = qkv.cast<Eigen::half>();
    const elsa::engine engine = elsa::or_throw(elsa::engine::create());
    const Rows<float> out = attention<float>(engine, qkv.leftCols(dim), qkv.middleCols(dim, dim), qkv.rightCols(dim));
    const Rows<Eigen::half> narrow =
        attention<Eigen::half>(engine, halves.leftCols(dim), halves.middleCols(dim, dim), halves.rightCols(dim));

    const Rows<double> d = qkv.cast<double>();
    const Rows<double> weights =
        (d.leftCols(dim) * d.middleCols(dim, dim).transpose() / std::sqrt(double(dim))).array().exp();
    const Rows<double> want = weights.rowwise().sum().cwiseInverse().asDiagonal() * (weights * d.rightCols(dim));
    check::Worst worst;
    for (Eigen::Index i = 0; i < want.size(); ++i) {
        worst.compare(out.data()[i], want.data()[i]);
        // The f16 output is rounded once: by at most 2^-11 of its value.
        const double error = std::fabs(double(static_cast<float>(narrow.data()[i])) - want.data()[i]);
        if (!(error <= std::fabs(want.data()[i]) / 2048.0 + 1e-5)) {
            worst.compare(1.0f, 0.0);
        }
    }
    return worst.verdict();
}
