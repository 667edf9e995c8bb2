#include "classifier.hpp"

#include "error.hpp"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>

namespace node {
namespace {

typedef diagnostic_msgs::DiagnosticStatus Status;

/// Names of the values, in the order of Value.
const char *const names[values] = {
    "error",      "picture_stamp", "class",       "probability", "scores",  "latency_us",  "late",
    "backend",    "fallback",      "certificate", "bound",       "answered", "refused",     "idle",
    "late_total", "skipped_total", "fallbacks_total",
};

/// Bytes reserved for the text of a value, and for each score.
const std::size_t text_bytes = 320, score_bytes = 16;

vision::AttentionOptions certified(vision::AttentionOptions options) {
    options.certify = true;
    return options;
}

} // namespace

Classifier::Classifier(const std::string &name, const vision::SafeTensors &weights,
                       const vision::AttentionOptions &options)
    : model_(weights, certified(options)) {
    message_.status.resize(1);
    Status &status = message_.status.front();
    status.name = name;
    status.hardware_id = device().gpu.empty() ? device().backend : device().gpu;
    status.message.reserve(text_bytes);
    status.values.resize(values);
    for (std::size_t i = 0; i < values; ++i) {
        status.values[i].key = names[i];
        status.values[i].value.reserve(text_bytes);
    }
    status.values[value_scores].value.reserve(score_bytes * model_.scores().size());
    cells_.fill(0.0f);
    static_cast<void>(model_.classify(cells_));
}

void Classifier::begin(const realtime::Tick &period) noexcept {
    period_ = period;
    skipped_ += period.skipped;
    taken_ = false;
}

void Classifier::take(const sensor_msgs::Image &image) {
    clear();
    taken_ = true;
    set(value_picture_stamp, "%u.%09u", image.header.stamp.sec, image.header.stamp.nsec);
    const Refusal refusal = read(image, cells_, why_);
    if (refusal != Refusal::none) {
        fail(name_of(refusal), why_.data());
        return;
    }
    try {
        answer(model_.classify(cells_));
    } catch (const vision::Error &error) {
        fail("device", error.what());
    }
}

void Classifier::answer(const vision::Answer &answer) {
    Status &status = message_.status.front();
    const std::uint64_t done = realtime::now();
    const bool late = done > period_.deadline, fallback = answer.attention.fallback;
    const elsa_certified &certified = answer.attention.certified;
    ++answered_;
    late_ += late;
    fallbacks_ += fallback;
    set(value_class, "%zu", answer.best);
    set(value_probability, "%.9g", double(model_.probabilities()[answer.best]));
    std::string &scores = status.values[value_scores].value;
    for (const float score : model_.scores()) {
        char text[score_bytes + 8];
        // Nine digits determine a float.
        std::snprintf(text, sizeof text, "%s%.9g", scores.empty() ? "" : " ", double(score));
        scores.append(text);
    }
    set(value_latency_us, "%llu", static_cast<unsigned long long>((done - period_.release) / 1000));
    set(value_late, "%d", int(late));
    set(value_backend, "%s", answer.attention.backend);
    set(value_fallback, "%d", int(fallback));
    set(value_certificate, "%s", certified.claims != 0 ? "rigorous" : certified.reason);
    set(value_bound, "%.9g", certified.bound);
    const bool sound = !late && !fallback && certified.claims != 0;
    status.level = sound ? Status::OK : Status::WARN;
    std::snprintf(why_.data(), why_.size(), "class %zu%s%s%s", answer.best, late ? ", late" : "",
                  fallback ? ", by the CPU in place of the GPU" : "",
                  certified.claims != 0 ? "" : ", without a bound on its error");
    status.message.assign(why_.data());
}

void Classifier::fail(const char *kind, const char *text) {
    Status &status = message_.status.front();
    ++refused_;
    status.level = Status::ERROR;
    set(value_error, "%s", kind);
    std::array<char, text_bytes> line;
    std::snprintf(line.data(), line.size(), "%s", text);
    status.message.assign(line.data());
}

const diagnostic_msgs::DiagnosticArray &Classifier::end(const ros::Time &stamp) {
    if (!taken_) {
        clear();
        ++idle_;
        Status &status = message_.status.front();
        status.level = Status::STALE;
        status.message.assign("no picture in this period");
    }
    const std::uint64_t counts[] = {answered_, refused_, idle_, late_, skipped_, fallbacks_};
    for (std::size_t i = value_answered; i < values; ++i) {
        set(static_cast<Value>(i), "%llu", static_cast<unsigned long long>(counts[i - value_answered]));
    }
    message_.header.stamp = stamp;
    return message_;
}

void Classifier::clear() {
    for (std::size_t i = 0; i < value_answered; ++i) {
        message_.status.front().values[i].value.clear();
    }
}

void Classifier::set(Value value, const char *format, ...) {
    std::array<char, text_bytes> text;
    va_list arguments;
    va_start(arguments, format);
    const int n = std::vsnprintf(text.data(), text.size(), format, arguments);
    va_end(arguments);
    message_.status.front().values[value].value.assign(n < 0 ? "" : text.data());
}

} // namespace node
