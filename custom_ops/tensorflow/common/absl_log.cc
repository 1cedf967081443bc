// Functions that the headers of abseil take to be in TensorFlow's library.
//
// They are templates there. Clang, which TensorFlow 2.20 was compiled with, writes the
// condition on their type into their names, and GCC does not: without these, a library of
// GCC asks for names that no TensorFlow 2.20 has. In 2.21 they have no condition.

#include "absl/base/config.h"
#include "absl/log/internal/log_message.h"

#if ABSL_LTS_RELEASE_VERSION < 20250814

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace log_internal {

template LogMessage& LogMessage::operator<<(const int& v);
template LogMessage& LogMessage::operator<<(const long& v);
template LogMessage& LogMessage::operator<<(const unsigned long& v);

}  // namespace log_internal
ABSL_NAMESPACE_END
}  // namespace absl

#endif
