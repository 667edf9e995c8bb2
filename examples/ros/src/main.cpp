// A node that classifies the newest picture of a topic in every period, and publishes the answer as diagnostics.

#include "classifier.hpp"

#include "clock.hpp"
#include "error.hpp"
#include "safetensors.hpp"

#include <ros/ros.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

namespace {

using vision::Error;

/// Returns a parameter of the node that is a number from `least` to `most`. Throws Error.
double number(const ros::NodeHandle &own, const std::string &name, double otherwise, double least, double most) {
    const double value = own.param(name, otherwise);
    if (!(value >= least && value <= most)) {
        throw vision::refused("~" + name, std::to_string(value), std::to_string(least) + " to " + std::to_string(most));
    }
    return value;
}

/// Receives the pictures of the topic.
struct Receiver {
    node::Classifier &classifier;

    void take(const sensor_msgs::Image::ConstPtr &image) { classifier.take(*image); }
};

void run() {
    ros::NodeHandle topics, own("~");
    const std::string model = own.param<std::string>("model", "");
    if (model.empty()) {
        throw vision::refused("~model", "absent", "a safetensors file");
    }
    const std::string fallback = own.param<std::string>("fallback", "cpu");
    if (fallback != "cpu" && fallback != "fail") {
        throw vision::refused("~fallback", fallback, "cpu, fail");
    }
    const double rate = number(own, "rate", 30.0, 0.1, 10000.0);
    vision::AttentionOptions options;
    options.backend = own.param<std::string>("backend", "auto");
    options.threads = static_cast<std::size_t>(number(own, "threads", 1.0, 1.0, 1024.0));
    options.fallback = fallback == "cpu";
    // Reports why the CPU computes instead of a GPU, and other messages of the library.
    const elsa::result<elsa::logger> log = elsa::logger::create(
        ELSA_LOG_WARN, [](elsa_log_level, const char *text) { ROS_WARN("%s", text); });
    if (!log) {
        throw Error(vision::Fault::system, "log: " + log.message());
    }
    node::Classifier classifier(ros::this_node::getName(), vision::SafeTensors::open(model), options);
    Receiver receiver{classifier};
    const ros::Publisher diagnostics = topics.advertise<diagnostic_msgs::DiagnosticArray>("diagnostics", 1);
    // A queue of one picture: an older one is dropped when a newer one arrives.
    const ros::Subscriber pictures =
        topics.subscribe("image", 1, &Receiver::take, &receiver, ros::TransportHints().tcpNoDelay());
    realtime::Schedule schedule(static_cast<std::uint64_t>(1e9 / rate), realtime::now());
    while (ros::ok()) {
        const realtime::Tick period = schedule.next(realtime::now());
        while (ros::ok() && !realtime::sleep_until(period.release)) {
        }
        classifier.begin(period);
        ros::spinOnce();
        diagnostics.publish(classifier.end(ros::Time::now()));
    }
}

} // namespace

int main(int count, char **words) {
    try {
        ros::init(count, words, "digits");
        run();
        return 0;
    } catch (const Error &error) {
        ROS_FATAL("%s", error.what());
        return static_cast<int>(error.fault());
    } catch (const std::exception &error) {
        ROS_FATAL("%s", error.what());
        return 3;
    }
}
