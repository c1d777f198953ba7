// Pushing symbols; numerics/ans.py is the specification.
#pragma once
#include "coding/cpu_ans.h"

namespace laconic { namespace LACONIC_ISA {

// Writes words from the end of a buffer down.
class AnsWriter {
 public:
  AnsWriter(size_t symbols, uint8_t* floor, uint8_t* end) : lanes_(lanes_for(symbols)), floor_(floor), at_(end) {
    std::fill_n(numbers_, kMostLanes, kLowest);
  }
  const uint32_t* numbers() const { return numbers_; }
  const uint8_t* words() const { return at_; }

  // Symbols that begin a row, and precede all that were pushed before.
  CodeFault push(const uint8_t* symbols, size_t count, const PushTable& table) {
    const size_t ragged = count % lanes_.count;
    if (ragged) push_rows(symbols + count - ragged, ragged, table, LaneOrder(ragged));
    size_t left = count - ragged;
#if defined(__AVX512F__)
    if (lanes_.count == kMostLanes) left = push_vectors(symbols, left, table);
#endif
    push_rows(symbols, left, table, lanes_);
    return has_room(at_) ? fault_ : CodeFault::no_room;
  }

 private:
  bool has_room(const uint8_t* at) const { return at - floor_ >= ptrdiff_t(2 * kMostWords); }

  // Whole rows of these lanes, while there is room. A row with rare symbols is found to be one when it is done, and
  // is done again.
  void push_rows(const uint8_t* symbols, size_t left, const PushTable& table, const LaneOrder& order) {
    uint32_t spare[kMostLanes], *now = numbers_, *next = spare;
    std::copy_n(numbers_, kMostLanes, spare);
    uint8_t* at = at_;  // local, as a byte that is written might be a member's
    for (; left && has_room(at); left -= order.count, std::swap(now, next)) {
      const uint8_t* const row = symbols + left - order.count;
      const Pushed pushed = push_row(row, order, table.entries, now, next, at);
      at = pushed.at;
      if (__builtin_expect(!pushed.rare, 1)) continue;
      at = push_escaped(row, order, table, now, pushed.before);
      at = push_row(row, order, table.entries, now, next, at).at;
    }
    at_ = at;
    if (now != numbers_) std::copy_n(spare, kMostLanes, numbers_);
  }

  struct Pushed {
    uint8_t *at, *before;
    bool rare;
  };
  static Pushed push_row(const uint8_t* symbols, const LaneOrder& order, const PushEntry* entries,
                         const uint32_t* numbers, uint32_t* results, uint8_t* at) {
    uint8_t* const before = at;
    uint32_t rare = 0;
    for (size_t k = order.count; k-- > 0;) {
      const size_t i = order.lane[k];
      const PushEntry& entry = entries[symbols[i]];
      const uint32_t number = spill(numbers[i], entry.largest, at);
      const uint32_t times = uint32_t(number * entry.inverse >> kInverseBits);
      results[i] = number + entry.start + times * entry.others;
      rare |= entry.rare;
    }
    return {at, before, rare != 0};
  }
  uint8_t* push_escaped(const uint8_t* symbols, const LaneOrder& order, const PushTable& table, uint32_t* numbers,
                        uint8_t* at) {
    if (!table.escapes) fault_ = CodeFault::unknown;
    for (size_t k = order.count; k-- > 0;) {
      const size_t i = order.lane[k];
      if (table.entries[symbols[i]].rare)
        numbers[i] = spill(numbers[i], UINT32_MAX >> kRawBits, at) << kRawBits | symbols[i];
    }
    return at;
  }
  // The number, without its lower half if it is larger than the bound. By arithmetic: compilers make branches of
  // conditions, and this one could not be foreseen.
  static uint32_t spill(uint32_t number, uint32_t largest, uint8_t*& at) {
    const uint16_t word = uint16_t(number);
    std::memcpy(at - 2, &word, 2);
    const ptrdiff_t full = (ptrdiff_t(largest) - ptrdiff_t(number)) >> 63;  // -1, or 0
    at += 2 * full;
    return number >> (16 & full);
  }

#if defined(__AVX512F__)
#include "coding/cpu_ans_push_avx512.h"
#endif

  LaneOrder lanes_;
  alignas(64) uint32_t numbers_[kMostLanes];
  uint8_t *floor_, *at_;
  CodeFault fault_ = CodeFault::none;
};

}}  // namespace laconic::LACONIC_ISA
