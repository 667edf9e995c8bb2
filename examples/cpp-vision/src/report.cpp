#include "report.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <iostream>

namespace vision {
namespace {

/// Number of classes listed in a line of text.
const std::size_t named = 3;

} // namespace

void print_answer(const std::string &path, long label, const std::vector<float> &scores, const std::vector<float> &p,
                  const Answer &answer, bool json) {
    if (json) {
        nlohmann::ordered_json line = {{"file", path},
                                       {"class", answer.best},
                                       {"probability", p[answer.best]},
                                       {"scores", scores},
                                       {"backend", answer.attention.backend},
                                       {"fallback", answer.attention.fallback}};
        line["label"] = label < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(label);
        std::cout << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
        return;
    }
    std::vector<std::size_t> order(p.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
        order[i] = i;
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
    std::cout << path << ':';
    for (std::size_t i = 0; i < std::min(named, order.size()); ++i) {
        char text[64];
        std::snprintf(text, sizeof text, "%s %zu (%.4f)", i == 0 ? "" : ",", order[i], double(p[order[i]]));
        std::cout << text;
    }
    if (label >= 0 && static_cast<std::size_t>(label) != answer.best) {
        std::cout << "; labelled " << label;
    }
    std::cout << '\n';
}

} // namespace vision
