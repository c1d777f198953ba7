// Parts of symbols, their books, and what may be their message, from an input of
//
//   format     one byte, and one where symbols begin
//   books      one byte: how many; of each: one byte, how many symbols less one, and for each symbol three: which,
//              and its share less one. The last one has what is left
//   parts      one byte: how many; of each: one byte, 0 if it is silent or which book it has, from 1 on, and three
//              how many symbols
//   message    the rest
#pragma once
#include <numeric>

#include "input.h"

namespace laconic { namespace fuzz {

constexpr int32_t kParts = 2048;
constexpr Minifloat kMinifloats[] = {kE5m2, kE4m3, kFp4};

struct Book {
  std::vector<int32_t> shares = std::vector<int32_t>(kSymbols), starts = std::vector<int32_t>(kSymbols);

  explicit Book(Input& input) {
    int32_t left = kParts;
    for (size_t others = input.number(1); left > 0; --others) {
      int32_t& share = shares[input.number(1)];
      const int32_t told = 1 + int32_t(input.number(2)) % kParts, taken = others ? std::min(told, left) : left;
      share += taken;
      left -= taken;
    }
    lay_out();
  }
  // The largest first, and the first of equals.
  void lay_out() {
    std::vector<size_t> order(kSymbols);
    std::iota(order.begin(), order.end(), size_t(0));
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return shares[a] > shares[b]; });
    int32_t start = 0;
    for (size_t s : order) {
      starts[s] = shares[s] ? start : 0;
      start += shares[s];
    }
  }
};

// The symbols of a part: few, or so many that there are 64 lanes; what lies between only takes longer.
inline size_t count_of(size_t told) {
  return told >> 16 == 2 ? (size_t(1) << 17) + told % 1024 : told % (1 << 14);
}

struct Codes {
  Minifloat format;
  size_t offset, numel = 0, symbols = 0;
  std::vector<Book> books;
  std::vector<AnsBook> views;
  std::vector<AnsPart> parts;     // of those that are not silent
  std::vector<LevelPart> levels;  // of all; before each there is a coordinate that is no part's

  explicit Codes(Input& input)
      : format(kMinifloats[input.number(1) % 3]), offset(kHeadBytes + input.number(1) % 64) {
    for (size_t k = 1 + input.number(1) % 4; k--;) books.emplace_back(input);
    for (const Book& book : books) views.push_back({book.shares.data(), book.starts.data()});
    for (size_t k = input.number(1) % 9; k--;) {
      const int64_t book = int64_t(input.number(1) % (books.size() + 1)) - 1;
      add(count_of(input.number(3)), book);
    }
  }

  size_t width() const { return size_t(format.bits()); }
  AnsParts all() const { return {parts.data(), parts.size(), views.data()}; }
  Sealing sealing(size_t room) const { return {offset, width(), room}; }
  bool known(const Bytes& found) const {
    return std::all_of(found.begin(), found.end(), [&](uint8_t s) { return s < format.levels(); });
  }

 private:
  void add(size_t count, int64_t book) {
    levels.push_back({int64_t(++numel), int64_t(count), book});
    numel += count;
    if (book < 0) return;
    parts.push_back({int64_t(count), book});
    symbols += count;
  }
};

struct Unsealed {
  CodeFault fault;
  Bytes symbols;  // as they came out, if none is at fault

  bool operator==(const Unsealed& other) const {
    return fault == other.fault && (fault != CodeFault::none || symbols == other.symbols);
  }
};

inline Unsealed unsealed(const Codes& codes, const Bytes& message) {
  return alike([&](const Kernels& kernels) {
    Unsealed found = {CodeFault::none, Bytes(codes.symbols)};
    found.fault = kernels.unseal(message.data(), codes.all(), codes.sealing(message.size()), found.symbols.data());
    return found;
  });
}

}}  // namespace laconic::fuzz
