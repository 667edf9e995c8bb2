#include "files.hpp"

#include "error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <memory>

#include <dirent.h>
#include <sys/stat.h>

namespace vision {
namespace {

bool is_picture(const std::string &name) {
    const std::size_t dot = name.rfind('.');
    std::string end = dot == std::string::npos ? "" : name.substr(dot + 1);
    std::transform(end.begin(), end.end(), end.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
    return end == "png" || end == "jpg" || end == "jpeg";
}

} // namespace

std::vector<std::string> pictures_of(const std::vector<std::string> &paths) {
    std::vector<std::string> all;
    for (const std::string &path : paths) {
        struct stat kind;
        if (stat(path.c_str(), &kind) != 0) {
            throw file_error(path, errno, "a picture or a folder");
        }
        if (!S_ISDIR(kind.st_mode)) {
            all.push_back(path);
            continue;
        }
        std::unique_ptr<DIR, int (*)(DIR *)> folder(opendir(path.c_str()), closedir);
        if (!folder) {
            throw file_error(path, errno, "a folder that can be read");
        }
        const std::size_t before = all.size();
        while (const dirent *entry = readdir(folder.get())) {
            if (is_picture(entry->d_name)) {
                all.push_back(path + (path.back() == '/' ? "" : "/") + entry->d_name);
            }
        }
        if (all.size() == before) {
            throw refused(path, "no picture in it", "PNG or JPEG files");
        }
        std::sort(all.begin() + static_cast<std::ptrdiff_t>(before), all.end());
    }
    return all;
}

long label_of(const std::string &path) {
    const std::size_t slash = path.rfind('/');
    const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
    const std::size_t digits = name.find_first_not_of("0123456789");
    const bool labelled = digits != std::string::npos && digits > 0 && digits < 9 && name[digits] == '-';
    return labelled ? std::strtol(name.c_str(), nullptr, 10) : -1;
}

} // namespace vision
