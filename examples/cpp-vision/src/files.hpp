#pragma once

#include <string>
#include <vector>

namespace vision {

/// Returns the pictures that the paths name: files, and for folders their PNG and JPEG files in the order of their
/// names. Throws Error.
std::vector<std::string> pictures_of(const std::vector<std::string> &paths);

/// Returns the label in the name of a file, LABEL-anything, or -1.
long label_of(const std::string &path);

} // namespace vision
