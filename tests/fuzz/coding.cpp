// Damaged messages of the lossless stage and of GenNorm under the address and undefined-behavior sanitizers.
//
//   g++ -std=c++17 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover -ffp-contract=off -DLACONIC_ISA=portable
//       -Ilaconic/kernels tests/fuzz/coding.cpp laconic/kernels/coding/cpu.cpp laconic/kernels/gennorm/cpu.cpp -o fuzz
//   ./fuzz 1000000
//
// Add -mavx2 -mfma -mf16c -mbmi2 or the AVX-512 options of CMakeLists.txt for the other instruction sets. Nobody looks
// at the checksum here, so all damage reaches the decoders. Every buffer has just the size it needs, so that a byte
// read or written beyond one ends the program. A message is sealed, taken out again, and damaged in many ways.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "native/instruction_set.h"

using namespace laconic;
using namespace laconic::LACONIC_ISA;
using Bytes = std::vector<uint8_t>;

static std::mt19937_64 source(1);
static size_t below(size_t limit) { return limit ? source() % limit : 0; }
static void demand(bool holds, const char* sentence) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", sentence);
  std::abort();
}

// Where bytes begin. Of none this is the end of some others, as a vector would say null, which memcpy may not be given.
static uint8_t* data_of(const Bytes& bytes) {
  static const std::unique_ptr<uint8_t[]> other(new uint8_t[1]);
  return bytes.empty() ? other.get() + 1 : const_cast<uint8_t*>(bytes.data());
}

constexpr size_t kParts = 2048, kEscaped = 255;

// Shares of symbols below `levels`, and maybe of the escape; of whole bits or any.
struct Book {
  std::vector<int32_t> shares = std::vector<int32_t>(kSymbols), starts = std::vector<int32_t>(kSymbols);

  explicit Book(size_t levels) {
    std::vector<size_t> owners(levels);
    for (size_t s = 0; s < levels; ++s) owners[s] = s;
    std::shuffle(owners.begin(), owners.end(), source);
    owners.resize(1 + below(below(2) ? levels : 4));
    if (below(4)) owners.push_back(kEscaped);
    std::vector<int32_t> found(1, kParts);
    const bool bits = below(2);
    while (found.size() < owners.size()) {
      const size_t which = below(found.size());
      if (found[which] == 1) continue;
      const int32_t taken = bits ? found[which] / 2 : 1 + int32_t(below(size_t(found[which] - 1)));
      found[which] -= taken;
      found.push_back(taken);
    }
    for (size_t k = 0; k < owners.size(); ++k) shares[owners[k]] = found[k];
    lay_out();
  }
  void lay_out() {
    std::vector<size_t> order(kSymbols);
    for (size_t s = 0; s < kSymbols; ++s) order[s] = s;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return shares[a] > shares[b]; });
    int32_t start = 0;
    for (size_t s : order) {
      starts[s] = shares[s] ? start : 0;
      start += shares[s];
    }
  }
  // As frequent as the shares say, or any that can be said.
  uint8_t symbol(size_t levels, bool any) const {
    for (size_t tries = 0;; ++tries) {
      const size_t s = below(levels);
      const bool own = shares[s] > 0, escapes = shares[kEscaped] > 0;
      if (any ? own || escapes : int32_t(below(kParts)) < shares[s]) return uint8_t(s);
      if (tries > 4 * kSymbols) any = true;
    }
  }
  AnsBook view() const { return {shares.data(), starts.data()}; }
};

constexpr Minifloat kFormats[] = {kE5m2, kE4m3, kFp4};
constexpr Format kGradients[] = {Format::fp32, Format::bf16, Format::fp16};

// Some parts, their symbols, and their message.
struct Case {
  Minifloat format = kFormats[below(3)];
  std::vector<Book> books;
  std::vector<AnsBook> views;
  std::vector<AnsPart> parts;
  std::vector<LevelPart> spans;
  std::vector<float> inverses;
  Bytes symbols, message;
  size_t offset = kHeadBytes + below(40), numel = 0;

  explicit Case(size_t most) {
    const size_t count = below(4) ? 1 + below(3) : below(9);
    for (size_t k = 0; k < count; ++k) {
      books.emplace_back(format.levels());
      const bool any = !below(4), equal = !below(6);
      const size_t own = below(5) ? below(most / count + 1) : 0;
      const uint8_t same = books[k].symbol(format.levels(), any);
      for (size_t i = 0; i < own; ++i) symbols.push_back(equal ? same : books[k].symbol(format.levels(), any));
      const size_t before = below(3);
      numel += before;
      if (below(3) == 0) spans.push_back({int64_t(numel), int64_t(before), -1}), numel += before;
      parts.push_back({int64_t(own), int64_t(k)});
      spans.push_back({int64_t(numel), int64_t(own), int64_t(k)});
      numel += own;
    }
    for (const Book& book : books) views.push_back(book.view());
    inverses.assign(spans.size(), 0.5f);
    symbols.shrink_to_fit();
    message.resize(offset + raw_bytes(symbols.size(), width()) + kSpare);
    const CodeOutcome sealed = seal(data_of(symbols), all(), {offset, width(), message.size()}, data_of(message));
    demand(sealed.fault == CodeFault::none, "sound symbols are not sealed");
    message = Bytes(message.begin(), message.begin() + ptrdiff_t(sealed.size));
  }
  size_t width() const { return size_t(format.bits()); }
  AnsParts all() const { return {parts.data(), parts.size(), views.data()}; }

  CodeFault unsealed(const Bytes& from, Bytes& to) const {
    return unseal(data_of(from), all(), {offset, width(), from.size()}, data_of(to));
  }
  LevelFault averaged(const Bytes& first, const Bytes& second) const {
    const Leveled messages[] = {{data_of(first), {offset, width(), first.size()}, spans.data(), inverses.data()},
                                {data_of(second), {offset, width(), second.size()}, spans.data(), inverses.data()}};
    const Format gradient = kGradients[below(3)];
    Bytes out(numel * (gradient == Format::fp32 ? 4 : 2));
    return gennorm_average(messages, 2, spans.size(), views.data(), format, {data_of(out), gradient});
  }
};

static Bytes damaged(Bytes message, size_t offset) {
  for (size_t change = 1 + below(3); change--;) {
    const bool early = below(3) == 0;  // the kind and the numbers
    const size_t place = early ? 8 + below(offset + 24) : below(message.size()), kind = below(6);
    const size_t end = std::min(message.size(), place + 1 + below(16));
    if (kind == 0 && place < message.size()) message[place] = uint8_t(below(256));
    if (kind == 1 && place < message.size()) message[place] ^= uint8_t(1 << below(8));
    if (kind == 2 && place < message.size())
      message.resize(below(2) ? place : message.size() - below(9) % message.size());
    if (kind == 3)
      for (size_t more = below(9); more--;) message.push_back(uint8_t(below(256)));
    if (kind == 4)
      for (size_t k = place; k < end; ++k) message[k] = below(2) ? 255 : 0;
    if (kind == 5 && message.size() > 8 && !below(4)) message[8] = uint8_t(below(4));
  }
  return Bytes(message.begin(), message.end());  // a vector of just this size
}

static bool harmless(const Case& own) {
  const Bytes changed = damaged(own.message, own.offset);
  Bytes symbols(own.symbols.size());
  const CodeFault alone = own.unsealed(changed, symbols);
  const bool known = std::all_of(symbols.begin(), symbols.end(), [&](uint8_t s) { return s < own.format.levels(); });
  const LevelFault beside = own.averaged(own.message, changed);
  demand((alone == CodeFault::none && known) == (beside.fault == CodeFault::none), "only one of two refuses");
  demand(beside.fault == CodeFault::none || beside.message == 1, "the wrong worker is blamed");
  const size_t common = std::min(changed.size(), own.message.size());
  const bool resized = changed.size() != own.message.size() &&
                       std::equal(changed.begin(), changed.begin() + ptrdiff_t(common), own.message.begin());
  demand(!resized || alone != CodeFault::none, "a message that was only cut or extended is understood");
  return beside.fault == CodeFault::none;
}

int main(int, char** arguments) {
  size_t refused = 0, understood = 0;
  const size_t wanted = size_t(std::atol(arguments[1]));
  constexpr size_t kDamages = 100;
  for (size_t k = 0; k * kDamages < wanted; ++k) {
    // From 131072 symbols on there are 64 lanes.
    const Case own(k % 200 == 7 ? 400000 : k % 20 == 3 ? 30000 : 400);
    Bytes symbols(own.symbols.size());
    demand(own.unsealed(own.message, symbols) == CodeFault::none && symbols == own.symbols, "symbols changed");
    demand(own.averaged(own.message, own.message).fault == CodeFault::none, "a sound message is refused");
    for (size_t damage = 0; damage < kDamages; ++damage) (harmless(own) ? understood : refused) += 1;
  }
  std::printf("%zu understood, %zu refused, none harmful\n", understood, refused);
}
