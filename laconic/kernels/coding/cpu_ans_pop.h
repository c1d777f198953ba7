// Popping symbols; numerics/ans.py is the specification.
#pragma once
#include "coding/cpu_ans.h"

namespace laconic { namespace LACONIC_ISA {

class AnsReader {
 public:
  CodeFault open(const uint8_t* message, size_t bytes, size_t symbols) {
    lanes_ = LaneOrder(lanes_for(symbols));
    const size_t width = lanes_.count * kNumberBytes;
    if (bytes < width) return CodeFault::cut_short;
    std::memcpy(numbers_, message, width);
    at_ = message + width, end_ = message + bytes;
    return (bytes - width) % 2 ? CodeFault::within_word : CodeFault::none;
  }

  // Symbols from the beginning of a row on.
  CodeFault pop(uint8_t* symbols, size_t count, const PopTable& table) {
    size_t done = 0;
#if defined(__AVX512F__)
    if (lanes_.count == kMostLanes) done = pop_vectors(symbols, count, table);
    if (done == count) return fault_;
    leave_vectors();
#endif
    done += pop_rows(symbols + done, count - done, table);
    for (; done < count && fault_ == CodeFault::none; done += lanes_.count) {
      copy_rest();
      at_ = pop_row(symbols + done, LaneOrder(std::min(lanes_.count, count - done)), table, at_);
      if (at_ > end_) fault_ = CodeFault::cut_short;
    }
    return fault_;
  }
  CodeFault close() {
#if defined(__AVX512F__)
    leave_vectors();
#endif
    if (at_ != end_) return CodeFault::longer;
    for (size_t i = 0; i < lanes_.count; ++i)
      if (numbers_[i] != kLowest) return CodeFault::not_begun;
    return CodeFault::none;
  }

 private:
  // How many symbols, of whole rows, were popped while words were plenty.
  size_t pop_rows(uint8_t* symbols, size_t count, const PopTable& table) {
    const uint8_t* at = at_;  // local, as a byte that is written might be a member's
    size_t done = 0;
    for (; done + lanes_.count <= count && plenty(at); done += lanes_.count)
      at = pop_row(symbols + done, lanes_, table, at);
    at_ = at;
    return done;
  }
  bool plenty(const uint8_t* at) const { return end_ - at >= ptrdiff_t(2 * kMostWords); }

  const uint8_t* pop_row(uint8_t* symbols, const LaneOrder& order, const PopTable& table, const uint8_t* at) {
    const size_t count = order.count;
    uint32_t seen = 0;
    for (size_t k = 0; k < count; ++k) {
      const size_t i = order.lane[k];
      const uint32_t number = numbers_[i], slot = number % kWhole;
      const PopEntry entry = table.entries[slot];
      const uint32_t symbol = table.symbol[slot];
      symbols[i] = uint8_t(symbol);
      seen |= symbol + 1;
      numbers_[i] = refilled(entry.share * (number >> kScale) + entry.rest, at);
    }
    return __builtin_expect(seen > kEscape, 0) ? pop_escaped(symbols, order, table, at) : at;
  }
  const uint8_t* pop_escaped(uint8_t* symbols, const LaneOrder& order, const PopTable& table, const uint8_t* at) {
    for (size_t k = 0; k < order.count; ++k) {
      const size_t i = order.lane[k];
      if (symbols[i] != kEscape) continue;
      symbols[i] = uint8_t(numbers_[i]);
      if (table.known[symbols[i]]) fault_ = CodeFault::unknown;
      numbers_[i] = refilled(numbers_[i] >> kRawBits, at);
    }
    return at;
  }
  // The number, with the next word if it is low. By arithmetic: compilers make branches of conditions, and this one
  // could not be foreseen.
  static uint32_t refilled(uint32_t number, const uint8_t*& at) {
    uint16_t word;
    std::memcpy(&word, at, 2);
    const uint64_t low = (uint64_t(number) - kLowest) >> 63;
    at += 2 * low;
    return number << (16 * low) | (word & -uint32_t(low));
  }
  // The last words go where a row may read beyond them.
  void copy_rest() {
    if (copied_ || plenty(at_)) return;
    copied_ = true;
    const size_t left = size_t(end_ - at_);
    std::memcpy(rest_, at_, left);
    at_ = rest_, end_ = rest_ + left;
  }

#if defined(__AVX512F__)
#include "coding/cpu_ans_pop_avx512.h"
#endif

  LaneOrder lanes_ = LaneOrder(1);
  alignas(64) uint32_t numbers_[kMostLanes];
  const uint8_t *at_ = nullptr, *end_ = nullptr;
  uint8_t rest_[4 * kMostWords + 2] = {};
  bool copied_ = false;
  CodeFault fault_ = CodeFault::none;
};

}}  // namespace laconic::LACONIC_ISA
