// What the process says on stderr when it ends at once, in the format of all its lines: a failed check, a model's file
// that was cut off (base/mapping_fault), an exception that nobody caught.
#pragma once

#include <string_view>

#include "base/log_line.h"

namespace quire {

// From now on last words are written so, and those of an exception that nobody caught too. Until it is called they are
// text. For the whole process, as a failed check has nobody to ask: called by main, before threads are made, and again
// by a command whose lines have another format.
void set_last_words_format(LineFormat format);

// "quire: " and the message, or a JSON object with it. Allocates nothing, so that a signal's handler may call it; of a
// message longer than some thousand bytes the rest is left out.
void tell_last_words(std::string_view message);

}  // namespace quire
