#pragma once

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace vision {

/// Origin of an error; the numbers are the exit statuses of the program.
enum class Fault {
    /// The request: an argument, or a file that it names.
    request = 2,
    /// The device or the system.
    system = 3,
};

/// Failure of a call. The text names the faulty item, the value found and the values allowed.
class Error : public std::runtime_error {
public:
    Error(Fault fault, const std::string &text) : std::runtime_error(text), fault_(fault) {}

    Fault fault() const noexcept { return fault_; }

private:
    Fault fault_;
};

/// Returns an error of the request: `what: found; allowed: allowed`.
inline Error refused(const std::string &what, const std::string &found, const std::string &allowed) {
    return Error(Fault::request, what + ": " + found + "; allowed: " + allowed);
}

/// Returns the error of a file operation that left `code` in errno. A name without a file is a wrong
/// request.
inline Error file_error(const std::string &path, int code, const std::string &allowed) {
    const bool named = code == ENOENT || code == EACCES || code == EISDIR || code == ENOTDIR || code == ENAMETOOLONG;
    const char *reason = code == 0 ? "input or output failed" : std::strerror(code);
    return Error(named ? Fault::request : Fault::system, path + ": " + reason + "; allowed: " + allowed);
}

} // namespace vision
