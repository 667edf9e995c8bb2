#pragma once

#include <string>
#include <vector>

namespace vision {

/// The pictures that the paths name: files, and of folders their PNG and JPEG files in the order of their names. Throws
/// Error.
std::vector<std::string> pictures_of(const std::vector<std::string> &paths);

/// The label in the name of a file, LABEL-anything, or -1.
long label_of(const std::string &path);

} // namespace vision
