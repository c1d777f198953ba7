// Symbols on stacks of numbers; ans.py is the specification.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "coding.h"
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace laconic { namespace LACONIC_ISA {

constexpr uint32_t kScale = 11, kWhole = 1 << kScale, kLowest = 1 << 16, kEscape = 255, kRawBits = 8;
constexpr size_t kMostLanes = 64, kPerLane = 2048, kNumberBytes = 4, kStep = 4;
constexpr size_t kMostWords = 2 * kMostLanes;  // of a row: one for every symbol, one for what is behind an escape

inline size_t lanes_for(size_t count) {
  size_t lanes = 1;
  while (lanes < kMostLanes && 2 * lanes * kPerLane <= count) lanes *= 2;
  return lanes;
}

// Whether all shares are powers of two, each at a multiple of itself.
inline bool whole_bits(AnsBook book) {
  for (size_t s = 0; s < kSymbols; ++s)
    if (book.shares[s] & (book.shares[s] - 1) || (book.shares[s] && book.starts[s] % book.shares[s])) return false;
  return true;
}

// What pushing takes: for every symbol its share and where that starts, those of the escape where it has none.
struct PushTable {
  explicit PushTable(AnsBook book) : bits(whole_bits(book)), escapes(book.shares[kEscape]) {
    for (size_t s = 0; s < kSymbols; ++s) {
      rare[s] = !book.shares[s];
      const size_t own = rare[s] ? kEscape : s;
      share[s] = uint32_t(book.shares[own]), start[s] = uint32_t(book.starts[own]);
    }
    for (size_t s = 0; s < kSymbols; ++s) {
      if (share[s] && bits) shift[s] = uint8_t(__builtin_ctz(share[s]));
      if (share[s] && !bits) inverse[s] = ((uint64_t(1) << 63) - 1) / share[s] + 1;
      packed[s] = uint16_t(rare[s] << 15 | start[s] << 4 | shift[s]);
    }
  }

  bool bits, escapes;  // a push moves whole bits; there is an escape
  bool rare[kSymbols];
  uint32_t share[kSymbols], start[kSymbols];
  uint64_t inverse[kSymbols];  // 2^63 / share, rounded up: exact for dividends of 32 bits
  uint8_t shift[kSymbols] = {};
  alignas(64) uint16_t packed[kSymbols];  // rare, start and shift
};

// Writes words from the end of a buffer down.
class AnsWriter {
 public:
  AnsWriter(size_t symbols, uint8_t* floor, uint8_t* end) : lanes_(lanes_for(symbols)), floor_(floor), at_(end) {
    std::fill_n(numbers_, kMostLanes, kLowest);
  }
  size_t lanes() const { return lanes_; }
  const uint32_t* numbers() const { return numbers_; }
  const uint8_t* words() const { return at_; }

  // Symbols that begin a row, and precede all that were pushed before.
  CodeFault push(const uint8_t* symbols, size_t count, const PushTable& table) {
    const size_t ragged = count % lanes_;
    if (ragged && has_room()) push_row(symbols + count - ragged, ragged, table);
    size_t left = count - ragged;
#if defined(__AVX512F__)
    if (lanes_ == kMostLanes && table.bits) left = push_vectors(symbols, left, table);
#endif
    for (; left && has_room(); left -= lanes_) push_row(symbols + left - lanes_, lanes_, table);
    if (!has_room()) return CodeFault::no_room;
    return fault_;
  }

 private:
  bool has_room() const { return at_ - floor_ >= ptrdiff_t(2 * kMostWords); }

  void push_row(const uint8_t* symbols, size_t count, const PushTable& table) {
    bool escapes = false;
    for (size_t i = 0; i < count; ++i) escapes |= table.rare[symbols[i]];
    if (escapes) push_escaped(symbols, count, table);
    uint8_t* at = at_;  // a local one stays in a register
    for (size_t step = kStep; step-- > 0;)
      for (ptrdiff_t i = last(count, step); i >= 0; i -= kStep)
        numbers_[i] = table.bits ? push_bits(numbers_[i], symbols[i], table, at)
                                 : push_share(numbers_[i], symbols[i], table, at);
    at_ = at;
  }
  void push_escaped(const uint8_t* symbols, size_t count, const PushTable& table) {
    if (!table.escapes) fault_ = CodeFault::unknown;
    for (size_t step = kStep; step-- > 0;)
      for (ptrdiff_t i = last(count, step); i >= 0; i -= kStep)
        if (table.rare[symbols[i]])
          numbers_[i] = spill(numbers_[i], uint64_t(1) << (32 - kRawBits), at_) << kRawBits | symbols[i];
  }
  static uint32_t push_bits(uint32_t number, uint8_t symbol, const PushTable& table, uint8_t*& at) {
    const uint32_t shift = table.shift[symbol];
    number = spill(number, uint64_t(1) << (shift + 32 - kScale), at);
    return number >> shift << kScale | table.start[symbol] | (number & ((1u << shift) - 1));
  }
  static uint32_t push_share(uint32_t number, uint8_t symbol, const PushTable& table, uint8_t*& at) {
    const uint32_t share = table.share[symbol];
    number = spill(number, uint64_t(share) << (32 - kScale), at);
    const uint32_t times = uint32_t((unsigned __int128)number * table.inverse[symbol] >> 63);
    return (times << kScale) + table.start[symbol] + (number - times * share);
  }
  // The number, without its lower half if it is as large as the bound. Without a branch, which could not be foreseen.
  static uint32_t spill(uint32_t number, uint64_t bound, uint8_t*& at) {
    const uint16_t word = uint16_t(number);
    std::memcpy(at - 2, &word, 2);
    const uint32_t full = number >= bound;
    at -= 2 * full;
    return number >> (16 * full);
  }
  // The last lane of a row of `count` that is `step` more than a multiple of four.
  static ptrdiff_t last(size_t count, size_t step) {
    return ptrdiff_t((count + kStep - 1 - step) / kStep * kStep) - ptrdiff_t(kStep) + ptrdiff_t(step);
  }

#if defined(__AVX512F__)
#include "ans_push_avx512.h"
#endif

  size_t lanes_;
  alignas(64) uint32_t numbers_[kMostLanes];
  uint8_t *floor_, *at_;
  CodeFault fault_ = CodeFault::none;
};

// What popping takes.
struct PopTable {
  PopTable(AnsBook book, bool vectors) : bits(whole_bits(book)) {
    for (size_t s = 0; s < kSymbols; ++s) {
      share[s] = uint16_t(book.shares[s]), start[s] = uint16_t(book.starts[s]);
      std::memset(symbol + start[s], int(s), share[s]);
      if (share[s]) shift[s] = uint8_t(__builtin_ctz(share[s]));
    }
    if (!vectors) return;
    for (size_t k = 0; k < kSymbols; ++k) coarse[k] = symbol[8 * k];
    for (size_t s = 0; s < kSymbols; ++s)
      if (share[s] && share[s] < 8) first_fine = std::min(first_fine, uint32_t(start[s]) / 128);
    for (size_t k = 0; k < kWhole; ++k) {
      const uint32_t s = symbol[k];
      entries[k] = s << 22 | (uint32_t(k) - start[s]) << 11 | (share[s] - 1u);
    }
  }

  bool bits;
  uint16_t share[kSymbols], start[kSymbols];
  alignas(64) uint8_t symbol[kWhole];        // of every slot
  alignas(64) uint8_t shift[kSymbols] = {};  // of every symbol, for shares that are powers of two
  alignas(64) uint8_t coarse[kSymbols];      // of every eighth slot: right for those before the fine ones
  uint32_t first_fine = kWhole / 128;        // from these 128 slots on there are shares below eight
  alignas(64) uint32_t entries[kWhole];      // symbol, slot - start, share - 1
};

class AnsReader {
 public:
  CodeFault open(const uint8_t* message, size_t bytes, size_t symbols) {
    lanes_ = lanes_for(symbols);
    if (bytes < lanes_ * kNumberBytes) return CodeFault::cut_short;
    std::memcpy(numbers_, message, lanes_ * kNumberBytes);
    at_ = message + lanes_ * kNumberBytes;
    left_ = (bytes - lanes_ * kNumberBytes) / 2;
    return (bytes - lanes_ * kNumberBytes) % 2 ? CodeFault::within_word : CodeFault::none;
  }
  bool vectors() const { return lanes_ == kMostLanes; }

  // Symbols from the beginning of a row on.
  CodeFault pop(uint8_t* symbols, size_t count, const PopTable& table) {
    size_t done = 0;
#if defined(__AVX512F__)
    if (vectors()) done = pop_vectors(symbols, count, table);
#endif
    for (; done < count && fault_ == CodeFault::none; done += lanes_)
      pop_row(symbols + done, std::min(lanes_, count - done), table);
    return fault_;
  }
  CodeFault close() const {
    if (left_) return CodeFault::longer;
    for (size_t i = 0; i < lanes_; ++i)
      if (numbers_[i] != kLowest) return CodeFault::not_begun;
    return CodeFault::none;
  }

 private:
  void pop_row(uint8_t* symbols, size_t count, const PopTable& table) {
    if (left_ < kMostWords) copy_rest();
    const uint8_t* at = at_;
    bool escapes = false;
    for (size_t step = 0; step < kStep; ++step)
      for (size_t i = step; i < count; i += kStep) {
        const uint32_t number = numbers_[i], slot = number % kWhole, symbol = table.symbol[slot];
        numbers_[i] = refilled(table.share[symbol] * (number >> kScale) + slot - table.start[symbol], at);
        symbols[i] = uint8_t(symbol);
        escapes |= symbol == kEscape;
      }
    if (escapes) at = pop_escaped(symbols, count, table, at);
    took(at);
  }
  const uint8_t* pop_escaped(uint8_t* symbols, size_t count, const PopTable& table, const uint8_t* at) {
    for (size_t step = 0; step < kStep; ++step)
      for (size_t i = step; i < count; i += kStep)
        if (symbols[i] == kEscape) {
          symbols[i] = uint8_t(numbers_[i]);
          if (table.share[symbols[i]]) fault_ = CodeFault::unknown;
          numbers_[i] = refilled(numbers_[i] >> kRawBits, at);
        }
    return at;
  }
  // The number, with the next word if it is low. Without a branch, which could not be foreseen.
  static uint32_t refilled(uint32_t number, const uint8_t*& at) {
    uint16_t word;
    std::memcpy(&word, at, 2);
    const uint32_t low = number < kLowest;
    at += 2 * low;
    return number << (16 * low) | (low ? word : 0);
  }
  void took(const uint8_t* at) {
    const size_t words = size_t(at - at_) / 2;
    if (words > left_) fault_ = CodeFault::cut_short;
    left_ -= std::min(words, left_);
    at_ = at;
  }
  // The last words go where a row may read beyond them.
  void copy_rest() {
    uint8_t rest[2 * kMostWords];
    std::memcpy(rest, at_, 2 * left_);
    std::memcpy(rest_, rest, 2 * left_);
    at_ = rest_;
  }

#if defined(__AVX512F__)
#include "ans_pop_avx512.h"
#endif

  size_t lanes_ = 0, left_ = 0;
  alignas(64) uint32_t numbers_[kMostLanes];
  const uint8_t* at_ = nullptr;
  uint8_t rest_[2 * kMostWords + 2] = {};
  CodeFault fault_ = CodeFault::none;
};

}}  // namespace laconic::LACONIC_ISA
