// The lossless stage: what its kernels take.
#pragma once
#include <cstddef>
#include <cstdint>

namespace laconic {

constexpr size_t kSymbols = 256;

// The shares of all symbols and where they start, as numerics/ans.py's books have them.
struct AnsBook {
  const int32_t *shares, *starts;
};

// The symbols of a part, and the number of its book.
struct AnsPart {
  int64_t count, book;
};

struct AnsParts {
  const AnsPart* parts;
  size_t count;
  const AnsBook* books;
};

enum class CodeFault { none, cut_short, longer, within_word, not_begun, unknown, kind, no_room };

struct CodeOutcome {
  CodeFault fault;
  size_t size;
};

// Where symbols begin in a message, how many bits they have if they are not coded, and the bytes of the message.
struct Sealing {
  size_t offset, width, room;
};

constexpr size_t kHeadBytes = 1;
constexpr size_t kSpare = 512;  // bytes behind the longest message that sealing may use
enum Kind : uint8_t { kCoded, kRaw };

constexpr size_t raw_bytes(size_t count, size_t width) { return (count * width + 7) / 8; }

}  // namespace laconic
