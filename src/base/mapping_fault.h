// What becomes of the process when a mapped file loses pages: a model that somebody cuts off or writes anew while it is
// being loaded, or a disk that fails. Reading such a page raises SIGBUS, which would end the process without a word.
#pragma once

namespace quire {

// From now on such a read ends the process with exit code 1 and last words (base/last_words) that name the file. Any
// other SIGBUS does what it always does. For the whole process: called by main, before threads are made.
void catch_mapping_faults();

}  // namespace quire
