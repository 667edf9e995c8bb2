// Tensors in cv::Mat, read and written in place. A matrix of CV_32F is a tensor [tokens, dim] whose rows are step1()
// elements apart, so that regions of interest need no copy.

#define ELSA_THROW
#include <elsa.hpp>

#include "check.hpp"

#include <opencv2/core.hpp>

namespace {

// The view of a matrix [tokens, heads * dim].
elsa_view view_of(const cv::Mat &mat, std::size_t heads) {
    CV_Assert(mat.type() == CV_32FC1 && mat.dims == 2);
    const std::size_t tokens = static_cast<std::size_t>(mat.rows), dim = static_cast<std::size_t>(mat.cols) / heads;
    elsa_view view = elsa::or_throw(elsa::view(ELSA_LAYOUT_BNHD, 1, heads, tokens, dim));
    view.strides[2] = mat.step1();
    view.strides[0] = tokens * mat.step1();
    return view;
}

} // namespace

int main() {
    const int tokens = 50, width = 32;
    const std::size_t heads = 2;
    // Queries, keys and values side by side, as one linear map writes them.
    cv::Mat qkv(tokens, 3 * width, CV_32FC1), out(tokens, width, CV_32FC1);
    cv::theRNG().state = 7;
    cv::randu(qkv, cv::Scalar(-1), cv::Scalar(1));
    const cv::Mat q = qkv.colRange(0, width), k = qkv.colRange(width, 2 * width), v = qkv.colRange(2 * width, 3 * width);

    elsa::problem<float> problem;
    problem.q = view_of(q, heads);
    problem.k = view_of(k, heads);
    problem.v = view_of(v, heads);
    problem.out = view_of(out, heads);
    const elsa::engine engine = elsa::or_throw(elsa::engine::create());
    const elsa::plan<float> plan = elsa::or_throw(engine.plan(problem));
    const elsa::workspace workspace = elsa::or_throw(plan.workspace());
    elsa::inputs<float> inputs;
    inputs.q = {q.ptr<float>(), elsa::extent(problem.q)};
    inputs.k = {k.ptr<float>(), elsa::extent(problem.k)};
    inputs.v = {v.ptr<float>(), elsa::extent(problem.v)};
    elsa::outputs<float> outputs;
    outputs.out = {out.ptr<float>(), elsa::extent(problem.out)};
    elsa::or_throw(plan.run(workspace, inputs, outputs));

    check::Worst worst;
    for (int h = 0; h < static_cast<int>(heads); ++h) {
        const cv::Range head(h * width / 2, (h + 1) * width / 2);
        cv::Mat qd, kd, vd, scores, sums;
        q.colRange(head).convertTo(qd, CV_64F);
        k.colRange(head).convertTo(kd, CV_64F);
        v.colRange(head).convertTo(vd, CV_64F);
        cv::exp(qd * kd.t() / std::sqrt(width / 2.0), scores);
        cv::reduce(scores, sums, 1, cv::REDUCE_SUM);
        const cv::Mat y = scores * vd;
        for (int i = 0; i < tokens; ++i) {
            for (int c = 0; c < width / 2; ++c) {
                worst.compare(out.at<float>(i, head.start + c), y.at<double>(i, c) / sums.at<double>(i));
            }
        }
    }
    return worst.verdict();
}
