// Recurrence, selective scan and convolution by elsa.hpp: against their definitions, over float and over bf16, states in place,
// and refusals. With and without ELSA_THROW.
#include "common.hpp"

namespace {

const std::size_t tokens = 23, channels = 5, numbers = 3, taps = 4;

struct Data {
    std::vector<float> u = noise(tokens * channels, 31), delta = noise(tokens * channels, 32),
                       gates = noise(tokens * channels, 33), a = noise(channels * numbers, 34),
                       b = noise(tokens * numbers, 35), c = noise(tokens * numbers, 36), d = noise(channels, 37),
                       filter = noise(channels * taps, 38), past = noise(channels * numbers, 39);
    Data() {
        for (float &x : gates) x = std::fabs(x);
        for (float &x : a) x = -std::fabs(x);
    }
};

// Computes h = a h + b of each channel.
std::vector<double> recurrence(const Data &x, std::vector<double> &last) {
    std::vector<double> y(tokens * channels);
    last.assign(x.past.begin(), x.past.begin() + channels);
    for (std::size_t t = 0; t < tokens; t++)
        for (std::size_t c = 0; c < channels; c++)
            y[t * channels + c] = last[c] = x.gates[t * channels + c] * last[c] + x.u[t * channels + c];
    return y;
}

void recurrences(const elsa::engine &engine) {
    const Data x;
    std::vector<double> last;
    const std::vector<double> want = recurrence(x, last);
    elsa::recurrence_problem<float> p;
    p.over(*elsa::tokens_first(1, tokens, channels)).in_place = 1;
    const auto plan = engine.recurrence_plan(p, elsa::series_options().with_parts(3)).value();
    CHECK(plan.choice()->parts == 3 && plan.describe().ok());
    const elsa::workspace room = plan.workspace().value();
    std::vector<float> y(want.size()), state(x.past.begin(), x.past.begin() + channels);
    const std::vector<float> first = state;
    elsa::recurrence_inputs<float> in;
    in.a = x.gates;
    in.b = x.u;
    elsa::series_outputs<float> to;
    to.out = y;
    to.present_state = state;
    elsa::report done;
    CHECK(plan.run(room, in, to, &done).ok() && done.workers > 0);
    CHECK(distance(y, want) < 1e-5 && distance(state, last) < 1e-5);
    CHECK(plan.run_device(room, in, to).code() == ELSA_STATUS_UNSUPPORTED);

    // A bound call starts from the current memory.
    const elsa::bound bound = plan.bind(room, in, to).value();
    state = first;
    const std::vector<float> before = y;
    CHECK(bound.run().ok() && y == before);
    std::vector<float> moved(y.size());
    to.out = moved;
    state = first;
    CHECK(plan.set(bound, in, to).ok() && bound.run().ok() && moved == before);
    to.out = y;

    // Plans of one operator share a workspace.
    const auto other = engine.recurrence_plan(p).value();
    const elsa::workspace both = elsa::shared_workspace(plan, other).value();
    state = first;
    CHECK(other.run(both, in, to).ok() && distance(y, want) < 1e-5);
}

// Runs a recurrence over tensors whose tokens are the inner axis, with logarithms in place of gates.
void variants(const elsa::engine &engine) {
    const Data x;
    std::vector<double> last;
    const std::vector<double> want = recurrence(x, last);
    const auto across = [](const std::vector<float> &from) {
        std::vector<float> to(from.size());
        for (std::size_t t = 0; t < tokens; t++)
            for (std::size_t c = 0; c < channels; c++) to[c * tokens + t] = from[t * channels + c];
        return to;
    };
    std::vector<float> logarithms = across(x.gates);
    for (float &gate : logarithms) gate = std::log(gate);
    const std::vector<float> addends = across(x.u), past(x.past.begin(), x.past.begin() + channels);
    elsa::recurrence_problem<float> p;
    p.over(*elsa::channels_first(1, channels, tokens)).with_logarithms();
    const auto plan = engine.recurrence_plan(p).value();
    std::vector<float> y(want.size());
    elsa::recurrence_inputs<float> in;
    in.a = logarithms;
    in.b = addends;
    in.past_state = past;
    elsa::series_outputs<float> to;
    to.out = y;
    CHECK(plan.run(plan.workspace().value(), in, to).ok());
    std::vector<float> turned(y.size());
    for (std::size_t t = 0; t < tokens; t++)
        for (std::size_t c = 0; c < channels; c++) turned[t * channels + c] = y[c * tokens + t];
    CHECK(distance(turned, want) < 1e-5);
}

void scans(const elsa::engine &engine) {
    const Data x;
    elsa::selective_problem<float> p;
    const elsa_view series = *elsa::tokens_first(1, tokens, channels), of = *elsa::tokens_first(1, tokens, numbers);
    p.over(series, numbers).with_coefficients(of, of).with_z(series).with_softplus();
    const auto plan = engine.selective_plan(p).value();
    std::vector<float> y(tokens * channels), state(channels * numbers);
    elsa::selective_inputs<float> in;
    in.u = x.u;
    in.delta = x.delta;
    in.a = x.a;
    in.b = x.b;
    in.c = x.c;
    in.d = x.d;
    in.z = x.gates;
    in.past_state = x.past;
    elsa::series_outputs<float> to;
    to.out = y;
    to.present_state = state;
    CHECK(plan.run(plan.workspace().value(), in, to).ok());
    CHECK(plan.run_device(plan.workspace().value(), in, to).code() == ELSA_STATUS_UNSUPPORTED);
    std::vector<double> want(y.size()), last(x.past.begin(), x.past.end());
    for (std::size_t t = 0; t < tokens; t++)
        for (std::size_t c = 0; c < channels; c++) {
            const std::size_t at = t * channels + c;
            const double step = std::log1p(std::exp(static_cast<double>(x.delta[at])));
            double sum = static_cast<double>(x.d[c]) * x.u[at];
            for (std::size_t n = 0; n < numbers; n++) {
                double &s = last[c * numbers + n];
                s = std::exp(step * x.a[c * numbers + n]) * s + step * x.b[t * numbers + n] * x.u[at];
                sum += x.c[t * numbers + n] * s;
            }
            want[at] = sum * x.gates[at] / (1 + std::exp(-static_cast<double>(x.gates[at])));
        }
    CHECK(distance(y, want) < 1e-5 && distance(state, last) < 1e-5);

    // B per channel.
    p.fixed_b = 1;
    const auto fixed = engine.selective_plan(p).value();
    CHECK(!fixed.run(fixed.workspace().value(), elsa::selective_inputs<float>(), to).ok());
    in.fixed_b = x.past;
    CHECK(fixed.run(fixed.workspace().value(), in, to).ok());
}

// Runs bf16, one filter per channel, with both methods.
void convolutions(const elsa::engine &engine) {
    const Data x;
    std::vector<elsa::bf16> u;
    for (const float v : x.u) u.push_back(elsa::bf16{to_bf16(v)});
    elsa::convolution_problem<elsa::bf16> p;
    p.over(*elsa::channels_first(1, channels, tokens), taps, ELSA_TAPS_NEWEST_LAST).with_silu();
    const elsa_convolution_method methods[] = {ELSA_CONVOLUTION_DIRECT, ELSA_CONVOLUTION_FFT};
    for (const elsa_convolution_method method : methods) {
        const auto plan = engine.convolution_plan(p, elsa::series_options().with_method(method)).value();
        CHECK(plan.choice()->method == method);
        std::vector<elsa::bf16> y(u.size());
        elsa::convolution_inputs<elsa::bf16> in;
        in.u = u;
        in.filter = x.filter;
        elsa::series_outputs<elsa::bf16> to;
        to.out = y;
        CHECK(plan.run(plan.workspace().value(), in, to).ok());
        CHECK(plan.run_device(plan.workspace().value(), in, to).code() == ELSA_STATUS_UNSUPPORTED);
        double worst = 0;
        for (std::size_t c = 0; c < channels; c++)
            for (std::size_t t = 0; t < tokens; t++) {
                double sum = 0;
                for (std::size_t k = 0; k < taps && k <= t; k++)
                    sum += static_cast<double>(x.filter[(c + 1) * taps - 1 - k]) * from_bf16(u[c * tokens + t - k].bits);
                worst = std::max(worst, std::fabs(from_bf16(y[c * tokens + t].bits) - sum / (1 + std::exp(-sum))));
            }
        CHECK(worst < 1e-2);
    }
}

void refused(const elsa::engine &engine) {
    elsa::selective_problem<float> p;
    const elsa_view series = *elsa::tokens_first(1, tokens, channels);
    p.over(series, numbers).with_coefficients(series, series);
    auto failed = engine.selective_plan(p);
    CHECK(!failed.ok() && failed.status().code() == ELSA_STATUS_ARGUMENT);
    CHECK(failed.message().find("b: channels 5") != std::string::npos);
    p.gate_dtype = ELSA_DTYPE_F16;
    CHECK(engine.selective_plan(p).message().find("gate_dtype") != std::string::npos);
    const elsa_selective_problem &plain = p;
    CHECK(engine.selective_plan(plain).message().find("gate_dtype: 1") != std::string::npos);
    elsa::convolution_problem<float> q;
    q.over(series, 0);
    CHECK(engine.convolution_plan(q).message().find("filter") != std::string::npos);
    q.dtype = ELSA_DTYPE_BF16;
    CHECK(engine.convolution_plan(q).message().find("dtype: 2") != std::string::npos);
#ifdef ELSA_THROW
    try {
        static_cast<void>(failed.value());
        CHECK(false);
    } catch (const elsa::error &e) {
        CHECK(e.code() == ELSA_STATUS_ARGUMENT);
    }
#endif
}

} // namespace

int main() {
    elsa::engine_options options;
    options.threads = 2;
    const elsa::engine engine = elsa::engine::create(options).value();
    recurrences(engine);
    variants(engine);
    scans(engine);
    convolutions(engine);
    refused(engine);
    std::printf("%d checks\n", checks);
    return 0;
}
