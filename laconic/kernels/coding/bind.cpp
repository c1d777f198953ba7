// Python's door to the lossless stage.
#include "coding/bind.h"

#include "native/bind.h"

namespace laconic {
namespace {

const char* const kFaults[] = {"",
                               "is cut short",
                               "is longer than it says",
                               "ends within a word",
                               "does not end as it began",
                               "has a symbol that there is not",
                               "is of no known kind",
                               "has no room"};

}  // namespace

std::vector<AnsBook> books_of(const Of<const int32_t>& books) {
  require(books.ndim() == 3 && books.shape(1) == 2 && books.shape(2) == kSymbols,
          "a book has 256 shares and where they start");
  std::vector<AnsBook> all;
  for (size_t k = 0; k < books.shape(0); ++k) {
    const AnsBook book = {books.data() + 2 * k * kSymbols, books.data() + (2 * k + 1) * kSymbols};
    int64_t whole = 0;
    for (size_t s = 0; s < kSymbols; ++s) {
      require(book.shares[s] >= 0 && book.starts[s] >= 0 && int64_t(book.shares[s]) + book.starts[s] <= 2048,
              "a share lies outside 2048 parts");
      whole += book.shares[s];
    }
    require(whole == 2048, "shares add up to 2048");
    all.push_back(book);
  }
  return all;
}

const char* said(CodeFault fault) { return kFaults[int(fault)]; }

void refuse(CodeFault fault, const std::string& message) {
  if (fault == CodeFault::none) return;
  const std::string sentence = message + " " + said(fault);
  throw nb::value_error(sentence.c_str());
}

Sealing sealing_of(size_t width, size_t offset, size_t room) {
  require(width == 4 || width == 8, "symbols have 4 or 8 bits");
  require(offset >= kHeadBytes, "a header begins behind the kind");
  return {offset, width, room};
}

namespace {

AnsParts ans_parts_of(const Of<const int64_t>& rows, const std::vector<AnsBook>& books, size_t symbols) {
  require(rows.ndim() == 2 && rows.shape(1) == 2, "a part has a number of symbols and a book");
  const AnsParts parts = {reinterpret_cast<const AnsPart*>(rows.data()), rows.shape(0), books.data()};
  size_t count = 0;
  for (size_t k = 0; k < parts.count; ++k) {
    const AnsPart& part = parts.parts[k];
    require(part.count >= 0 && size_t(part.count) <= symbols - count && part.book >= 0 &&
                size_t(part.book) < books.size(),
            "a part lies outside the symbols, or has no book");
    count += size_t(part.count);
  }
  require(count == symbols, "parts have all symbols");
  return parts;
}

size_t seal(const Of<const uint8_t>& symbols, const Of<const int64_t>& rows, const Of<const int32_t>& books,
            size_t width, size_t offset, const Of<uint8_t>& message) {
  const std::vector<AnsBook> all = books_of(books);
  const AnsParts parts = ans_parts_of(rows, all, symbols.size());
  const Sealing sealing = sealing_of(width, offset, message.size());
  require(message.size() >= offset + raw_bytes(symbols.size(), width) + kSpare, "a message has room for all symbols");
  CodeOutcome outcome;
  {
    nb::gil_scoped_release unlocked;
    outcome = chosen.kernels->seal(symbols.data(), parts, sealing, message.data());
  }
  refuse(outcome.fault, "what is sealed");
  return outcome.size;
}

void unseal(const Of<const uint8_t>& message, const Of<const int64_t>& rows, const Of<const int32_t>& books,
            size_t width, size_t offset, const Of<uint8_t>& symbols) {
  const std::vector<AnsBook> all = books_of(books);
  const AnsParts parts = ans_parts_of(rows, all, symbols.size());
  const Sealing sealing = sealing_of(width, offset, message.size());
  CodeFault fault;
  {
    nb::gil_scoped_release unlocked;
    fault = chosen.kernels->unseal(message.data(), parts, sealing, symbols.data());
  }
  refuse(fault, "the message");
}

}  // namespace

void bind_coding(nb::module_& module) {
#define LACONIC_OP LACONIC_BIND_OP
#include "coding/ops.inc"
#undef LACONIC_OP
}

}  // namespace laconic
