// Linear attention by elsa.hpp: a gated delta rule against its recurrence, over float and over f16, states in place, and
// refusals. With and without ELSA_THROW.
#include "common.hpp"

namespace {

const std::size_t heads = 4, states = 2, tokens = 21, dim = 8, width = 6;

struct Data {
    std::vector<float> q = noise(heads * tokens * dim, 31), k = noise(states * tokens * dim, 32),
                       v = noise(states * tokens * width, 33), decay = noise(states * tokens, 34),
                       beta = noise(states * tokens, 35), past = noise(states * dim * width, 36);
    Data() {
        for (float &x : k) x *= 0.5f;
        for (float &x : decay) x = -0.5f * std::fabs(x);
        for (float &x : beta) x = 0.5f + 0.5f * x;
    }
};

// Computes the answers and the last states by the definition.
std::vector<double> recurrence(const Data &x, std::vector<double> &s) {
    std::vector<double> y(heads * tokens * width);
    s.assign(x.past.begin(), x.past.end());
    for (std::size_t h = 0; h < states; h++)
        for (std::size_t t = 0; t < tokens; t++) {
            const std::size_t row = h * tokens + t;
            double *state = s.data() + h * dim * width;
            for (std::size_t i = 0; i < dim * width; i++) state[i] *= std::exp(static_cast<double>(x.decay[row]));
            for (std::size_t c = 0; c < width; c++) {
                double held = 0;
                for (std::size_t i = 0; i < dim; i++) held += x.k[row * dim + i] * state[i * width + c];
                const double written = x.beta[row] * (x.v[row * width + c] - held);
                for (std::size_t i = 0; i < dim; i++) state[i * width + c] += x.k[row * dim + i] * written;
            }
            for (std::size_t o = h * heads / states; o < (h + 1) * heads / states; o++)
                for (std::size_t c = 0; c < width; c++)
                    for (std::size_t i = 0; i < dim; i++)
                        y[(o * tokens + t) * width + c] +=
                            0.25 * x.q[(o * tokens + t) * dim + i] * state[i * width + c];
        }
    return y;
}

template <class T, class G = float>
elsa::linear_problem<T, G> described() {
    elsa::linear_problem<T, G> p;
    p.q = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, dim);
    p.k = *elsa::view(ELSA_LAYOUT_BHND, 1, states, tokens, dim);
    p.v = *elsa::view(ELSA_LAYOUT_BHND, 1, states, tokens, width);
    p.out = *elsa::view(ELSA_LAYOUT_BHND, 1, heads, tokens, width);
    const elsa_view rates = *elsa::view(ELSA_LAYOUT_BHND, 1, states, tokens, 1);
    p.with_rule(ELSA_RULE_GATED_DELTA).with_decay(rates).with_beta(rates).with_scale(0.25f);
    return p;
}

void answers(const elsa::engine &engine) {
    const Data x;
    std::vector<double> last;
    const std::vector<double> want = recurrence(x, last);
    elsa::linear_problem<float> p = described<float>();
    p.with_state_in_place(*elsa::view(ELSA_LAYOUT_BHND, 1, states, dim, width));
    const auto plan = engine.linear_plan(p, elsa::linear_options().with_form(ELSA_FORM_CHUNK, 8)).value();
    CHECK(plan.choice()->form == ELSA_FORM_CHUNK && plan.choice()->chunk == 8);
    CHECK(plan.describe().ok());
    const elsa::workspace room = plan.workspace().value();
    std::vector<float> y(want.size()), state = x.past;
    elsa::linear_inputs<float> in;
    in.q = x.q;
    in.k = x.k;
    in.v = x.v;
    in.decay = x.decay;
    in.beta = x.beta;
    elsa::linear_outputs<float> to;
    to.out = y;
    to.present_state = state;
    elsa::report done;
    CHECK(plan.run(room, in, to, &done).ok() && done.workers > 0);
    CHECK(distance(y, want) < 1e-5 && distance(state, last) < 1e-5);

    // The certificate needs the states before the run, which the run has overwritten.
    CHECK(plan.certify(in.get()).message().find("past_state: null") == 0);
    elsa::linear_inputs<float> before_the_run = in;
    before_the_run.past_state = x.past;
    std::vector<double> channels(width + 1, -1.0);
    const auto proved = plan.certify(before_the_run.get(), done.backend, channels.data(), channels.size()).value();
    CHECK(proved.claims == 1 && proved.unclaimed == 0 && proved.channels == width && channels[width] == -1.0);
    CHECK(distance(y, want) <= proved.absolute && distance(state, last) <= proved.state);
    CHECK(*std::max_element(channels.begin(), channels.end()) == proved.absolute && proved.absolute < 1e-3);

    // A bound call starts from the current memory.
    const elsa::bound bound = plan.bind(room, in, to).value();
    state = x.past;
    const std::vector<float> before = y;
    CHECK(bound.run().ok() && y == before);
    std::vector<float> moved(y.size());
    to.out = moved;
    state = x.past;
    CHECK(plan.set(bound, in, to).ok() && bound.run().ok() && moved == before);
    to.out = y;

    // Plans of one kind share a workspace, and every form has the same answer.
    const auto other = engine.linear_plan(p, elsa::linear_options().with_form(ELSA_FORM_RECURRENT)).value();
    const elsa::workspace both = elsa::shared_workspace(plan, other).value();
    state = x.past;
    CHECK(other.run(both, in, to).ok() && distance(y, want) < 1e-5);
    state = x.past;
    CHECK(plan.run(both, in, to).ok() && y == before);
}

// Runs f16 tensors with decay and beta of f16, without states.
void halves(const elsa::engine &engine) {
    Data x;
    std::fill(x.past.begin(), x.past.end(), 0.0f);
    const auto narrow = [](std::vector<float> &from) {
        std::vector<elsa::f16> to;
        for (float &v : from) {
            to.push_back(elsa::f16{to_f16(v)});
            v = from_f16(to.back().bits);
        }
        return to;
    };
    const auto q = narrow(x.q), k = narrow(x.k), v = narrow(x.v), decay = narrow(x.decay), beta = narrow(x.beta);
    std::vector<double> last;
    const std::vector<double> want = recurrence(x, last);
    elsa::linear_problem<elsa::f16, elsa::f16> p = described<elsa::f16, elsa::f16>();
    CHECK(p.gate_dtype == ELSA_DTYPE_F16);
    const auto plan = engine.linear_plan(p).value();
    elsa::linear_inputs<elsa::f16, elsa::f16> in;
    in.q = q;
    in.k = k;
    in.v = v;
    in.decay = decay;
    in.beta = beta;
    std::vector<elsa::f16> y(want.size());
    elsa::linear_outputs<elsa::f16> to;
    to.out = y;
    CHECK(plan.run(plan.workspace().value(), in, to).ok());
    double worst = 0;
    for (std::size_t i = 0; i < y.size(); i++) worst = std::max(worst, std::fabs(from_f16(y[i].bits) - want[i]));
    CHECK(worst < 2e-3);
}

// Reverses the tokens of every head of a tensor with rows of `each` numbers.
void turn(std::vector<float> &x, std::size_t each) {
    for (float *head = x.data(); head != x.data() + x.size(); head += tokens * each)
        for (std::size_t t = 0; t < tokens / 2; t++)
            std::swap_ranges(head + t * each, head + (t + 1) * each, head + (tokens - 1 - t) * each);
}

// Makes the rows of a tensor as long as queries and keys that are normalised with `epsilon`.
void shorten(std::vector<float> &x, float epsilon) {
    for (float *row = x.data(); row != x.data() + x.size(); row += dim) {
        float squares = epsilon;
        for (std::size_t i = 0; i < dim; i++) squares += row[i] * row[i];
        for (std::size_t i = 0; i < dim; i++) row[i] /= std::sqrt(squares);
    }
}

// Runs the tokens from last to first, and with normalised queries and keys.
void flags(const elsa::engine &engine) {
    const Data x;
    elsa::linear_inputs<float> in;
    in.q = x.q;
    in.k = x.k;
    in.v = x.v;
    in.decay = x.decay;
    in.beta = x.beta;
    in.past_state = x.past;
    const elsa_view before = *elsa::view(ELSA_LAYOUT_BHND, 1, states, dim, width);
    for (int reversed = 0; reversed < 2; reversed++) {
        Data other = x;
        elsa::linear_problem<float> p = described<float>();
        p.with_past_state(before);
        if (reversed != 0) {
            p.with_direction(ELSA_DIRECTION_REVERSE);
            turn(other.q, dim);
            turn(other.k, dim);
            turn(other.v, width);
            turn(other.decay, 1);
            turn(other.beta, 1);
        } else {
            p.with_normalize(0.5f);
            shorten(other.q, 0.5f);
            shorten(other.k, 0.5f);
        }
        std::vector<double> last;
        const std::vector<double> want = recurrence(other, last);
        const auto plan = engine.linear_plan(p).value();
        std::vector<float> y(want.size());
        elsa::linear_outputs<float> to;
        to.out = y;
        CHECK(plan.run(plan.workspace().value(), in, to).ok());
        if (reversed != 0) turn(y, width);
        CHECK(distance(y, want) < 1e-5);
    }
}

// Checks that packed sequences, one of them without tokens, have the answers of calls for each of them.
void packed(const elsa::engine &engine) {
    const Data x;
    const std::vector<std::int64_t> ends = {0, 9, 9, static_cast<std::int64_t>(tokens)};
    const std::vector<float> past = noise(3 * states * dim * width, 37);
    elsa::linear_problem<float> p = described<float>();
    p.with_past_state(*elsa::view(ELSA_LAYOUT_BHND, 3, states, dim, width)).with_packed(3);
    const auto plan = engine.linear_plan(p).value();
    elsa::linear_inputs<float> in;
    in.q = x.q;
    in.k = x.k;
    in.v = x.v;
    in.decay = x.decay;
    in.beta = x.beta;
    in.past_state = past;
    in.cu_seqlens = ends;
    std::vector<float> y(heads * tokens * width), alone(y.size());
    elsa::linear_outputs<float> to;
    to.out = y;
    CHECK(plan.run(plan.workspace().value(), in, to).ok());
    for (std::size_t s = 0; s < 3; s++) {
        // The views of one sequence keep the distances between heads.
        const std::size_t start = static_cast<std::size_t>(ends[s]), count = static_cast<std::size_t>(ends[s + 1]) - start;
        elsa::linear_problem<float> one = described<float>();
        for (elsa_view *view : {&one.q, &one.k, &one.v, &one.out, &one.decay, &one.beta}) view->shape[2] = count;
        one.with_past_state(*elsa::view(ELSA_LAYOUT_BHND, 1, states, dim, width));
        const auto from = [start](const std::vector<float> &all, std::size_t each) {
            return elsa::input<float>(all.data() + start * each, all.size() - start * each);
        };
        in.q = from(x.q, dim);
        in.k = from(x.k, dim);
        in.v = from(x.v, width);
        in.decay = from(x.decay, 1);
        in.beta = from(x.beta, 1);
        in.past_state = {past.data() + s * states * dim * width, states * dim * width};
        in.cu_seqlens = elsa::integers();
        to.out = {alone.data() + start * width, alone.size() - start * width};
        const auto single = engine.linear_plan(one).value();
        CHECK(single.run(single.workspace().value(), in, to).ok());
    }
    CHECK(distance(y, std::vector<double>(alone.begin(), alone.end())) < 1e-5);
    CHECK(*std::max_element(y.begin(), y.end()) > 0.1f);
}

void refused(const elsa::engine &engine) {
    elsa::linear_problem<float> p = described<float>();
    p.has_beta = 0;
    auto failed = engine.linear_plan(p);
    CHECK(!failed.ok() && failed.status().code() == ELSA_STATUS_ARGUMENT);
    CHECK(failed.message().find("beta") != std::string::npos);
    p = described<float>();
    p.gate_dtype = ELSA_DTYPE_F16;
    failed = engine.linear_plan(p);
    CHECK(failed.message().find("gate_dtype") != std::string::npos);
    const elsa_linear_problem &plain = p;
    CHECK(engine.linear_plan(plain).message().find("gate_dtype: 1") != std::string::npos);
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
    answers(engine);
    halves(engine);
    flags(engine);
    packed(engine);
    refused(engine);
    std::printf("%d checks\n", checks);
    return 0;
}
