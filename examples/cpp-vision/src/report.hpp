#pragma once

#include "model.hpp"

#include <string>
#include <vector>

namespace vision {

/// Prints the answer for the picture `path` on standard output, as a line of text or as a JSON object. A label of -1 is
/// none.
void print_answer(const std::string &path, long label, const std::vector<float> &scores,
                  const std::vector<float> &probabilities, const Answer &answer, bool json);

} // namespace vision
