#pragma once

#include "frame.hpp"

#include "clock.hpp"
#include "model.hpp"

#include <diagnostic_msgs/DiagnosticArray.h>
#include <ros/time.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace node {

/// Places of the values in the diagnostics.
enum Value : std::size_t {
    /// Kind of the failure: the field of a refused picture, or `device`; empty if there is none.
    value_error,
    /// Time stamp of the picture.
    value_picture_stamp,
    /// Class with the highest score, its probability, and all scores before softmax.
    value_class,
    value_probability,
    value_scores,
    /// Time from the start of the period to the answer, in microseconds, and 1 if it came after the end of the period.
    value_latency_us,
    value_late,
    /// Name of the back end that computed, and 1 if the CPU computed in place of a failing GPU.
    value_backend,
    value_fallback,
    /// `rigorous` if there is a proven bound on the error of attention, otherwise the reason why there is none.
    value_certificate,
    /// The bound, relative to sum_j p_j |v_j|; the largest of all blocks.
    value_bound,
    /// Counts since the start: answers, refused pictures and failures of the device, periods without a picture, late
    /// answers, periods that passed during a long picture, and answers by the CPU in place of a failing GPU.
    value_answered,
    value_refused,
    value_idle,
    value_late_total,
    value_skipped_total,
    value_fallbacks_total,
    values,
};

/// Classifies the picture of a period, and describes it as diagnostics. All memory is allocated by the constructor.
class Classifier {
public:
    /// Reads the network, plans its attention and computes one picture, so that the first picture of a camera takes as
    /// long as later ones. `name` is the name of the diagnostics. Throws vision::Error.
    Classifier(const std::string &name, const vision::SafeTensors &weights, const vision::AttentionOptions &options);

    /// Starts a period.
    void begin(const realtime::Tick &period) noexcept;

    /// Classifies the picture of the current period. A second picture of a period replaces the first. Allocates
    /// nothing, unless the device fails.
    void take(const sensor_msgs::Image &image);

    /// Ends the current period, and returns its diagnostics with this time stamp. The message is valid until the next
    /// period. Allocates nothing.
    const diagnostic_msgs::DiagnosticArray &end(const ros::Time &stamp);

    /// Returns the device that attention computes on.
    const vision::AttentionDevice &device() const noexcept { return model_.device(); }

private:
    void answer(const vision::Answer &answer);
    void fail(const char *kind, const char *text);
    /// Clears the values that describe one picture.
    void clear();
    /// Writes a value, by a format of printf. Text that does not fit is cut.
    void set(Value value, const char *format, ...) __attribute__((format(printf, 3, 4)));

    vision::Model model_;
    Cells cells_;
    Line why_;
    realtime::Tick period_ = {0, 0, 0};
    /// False until the period has a picture.
    bool taken_ = false;
    std::uint64_t answered_ = 0, refused_ = 0, idle_ = 0, late_ = 0, skipped_ = 0, fallbacks_ = 0;
    diagnostic_msgs::DiagnosticArray message_;
};

} // namespace node
