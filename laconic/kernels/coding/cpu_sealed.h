// Symbols in a message, coded or not; coding/__init__.py is the specification.
#pragma once
#include "coding/cpu_ans_pop.h"

namespace laconic { namespace LACONIC_ISA {

// Symbols of four or eight bits that are not coded.
inline void put_raw(const uint8_t* symbols, size_t count, size_t width, uint8_t* to) {
  if (width == 8) return void(std::memcpy(to, symbols, count));
  for (size_t i = 0; i + 2 <= count; i += 2) to[i / 2] = uint8_t(symbols[i] | symbols[i + 1] << 4);
  if (count % 2) to[count / 2] = symbols[count - 1];
}
// From symbol number `start` on.
inline void take_raw(const uint8_t* from, size_t start, size_t count, size_t width, uint8_t* symbols) {
  if (width == 8) return void(std::memcpy(symbols, from + start, count));
  for (size_t i = 0; i < count; ++i) symbols[i] = from[(start + i) / 2] >> ((start + i) % 2 * 4) & 15;
}

// A message that is being read: its symbols in order, part by part.
class Unsealing {
 public:
  CodeFault open(const uint8_t* message, Sealing sealing, size_t symbols) {
    if (sealing.room < sealing.offset || sealing.room < kHeadBytes) return CodeFault::cut_short;
    const size_t left = sealing.room - sealing.offset;
    content_ = message + sealing.offset, width_ = sealing.width;
    const uint8_t kind = message[0];
    if (kind == kCoded && symbols) return coded_ = true, reader_.open(content_, left, symbols);
    if (kind != kCoded && kind != kRaw) return CodeFault::kind;
    const size_t raw = kind == kRaw ? raw_bytes(symbols, width_) : 0;
    return left < raw ? CodeFault::cut_short : left > raw ? CodeFault::longer : CodeFault::none;
  }
  // What `take` needs of a book.
  std::unique_ptr<PopTable> table(AnsBook book) const {
    return std::unique_ptr<PopTable>(coded_ ? new PopTable(book) : nullptr);
  }
  // The next symbols of a part; all but the last ones of a part are multiples of 64.
  CodeFault take(uint8_t* symbols, size_t count, const PopTable* table) {
    if (coded_) return reader_.pop(symbols, count, *table);
    take_raw(content_, taken_, count, width_, symbols);
    taken_ += count;
    return CodeFault::none;
  }
  CodeFault close() { return coded_ ? reader_.close() : CodeFault::none; }

 private:
  const uint8_t* content_ = nullptr;
  size_t width_ = 0, taken_ = 0;
  bool coded_ = false;
  AnsReader reader_;
};

}}  // namespace laconic::LACONIC_ISA
