// What pushing and popping symbols take; numerics/ans.py is the specification.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "coding/cpu.h"
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

// The lanes of a row of `count` symbols, in the order in which they pop.
struct LaneOrder {
  explicit LaneOrder(size_t count) : count(count) {
    uint8_t* to = lane;
    for (size_t step = 0; step < kStep; ++step)
      for (size_t i = step; i < count; i += kStep) *to++ = uint8_t(i);
  }
  size_t count;
  uint8_t lane[kMostLanes];
};

// Whether all shares are powers of two, each at a multiple of itself.
inline bool whole_bits(AnsBook book) {
  for (size_t s = 0; s < kSymbols; ++s)
    if (book.shares[s] & (book.shares[s] - 1) || (book.shares[s] && book.starts[s] % book.shares[s])) return false;
  return true;
}

// How a symbol is pushed; one without a share has that of the escape, and is rare.
struct PushEntry {
  // 2^43 / share, rounded up: numbers are below share · 2^21, so this divides them exactly, within 64 bits.
  uint64_t inverse;
  uint32_t largest, others, start, rare;  // the largest number that takes the symbol; all shares but this
};
constexpr int kInverseBits = 43;

struct PushTable {
  explicit PushTable(AnsBook book) : bits(whole_bits(book)), escapes(book.shares[kEscape]) {
    for (size_t s = 0; s < kSymbols; ++s) {
      const bool rare = !book.shares[s];
      const size_t own = rare ? kEscape : s;
      const uint32_t share = uint32_t(book.shares[own]), start = uint32_t(book.starts[own]);
      const uint64_t inverse = share ? ((uint64_t(1) << kInverseBits) + share - 1) / share : 0;
      const uint32_t largest = uint32_t((uint64_t(share) << (32 - kScale)) - 1);
      entries[s] = {inverse, largest, kWhole - share, start, rare};
      shares[s] = uint16_t(share);
      starts[s] = uint16_t(rare << 15 | (bits ? start << 4 | (share ? __builtin_ctz(share) : 0) : start));
    }
  }

  bool bits, escapes;  // a push moves whole bits; there is an escape
  PushEntry entries[kSymbols];
  // For vectors: shares, and the rest, where shares that are powers of two have the logarithm in the lowest bits.
  alignas(64) uint16_t shares[kSymbols], starts[kSymbols];
};

// What popping a slot takes.
struct PopEntry {
  uint16_t rest, share;  // slot - start
};

struct PopTable {
  explicit PopTable(AnsBook book) : bits(whole_bits(book)) {
    for (uint32_t s = 0; s < kSymbols; ++s) {
      const uint32_t own = uint32_t(book.shares[s]), start = uint32_t(book.starts[s]);
      for (uint32_t rest = 0; rest < own; ++rest) entries[start + rest] = {uint16_t(rest), uint16_t(own)};
      std::memset(symbol + start, int(s), own);
      known[s] = own > 0;
      shift[s] = uint8_t(own ? __builtin_ctz(own) : 0);
      if (own && own < 8) first_fine = std::min(first_fine, start / 128);
    }
    for (size_t k = 0; k < kSymbols; ++k) coarse[k] = symbol[8 * k];
    for (size_t k = 0; k < kWhole; ++k)
      packed[k] = uint32_t(entries[k].share) << kShareAt | uint32_t(entries[k].rest) << kRestAt | symbol[k];
  }

  bool bits;
  bool known[kSymbols];  // it has a share
  PopEntry entries[kWhole];
  alignas(64) uint8_t symbol[kWhole];  // of every slot
  // For vectors:
  static constexpr unsigned kRestAt = 8, kShareAt = 19;
  alignas(64) uint32_t packed[kWhole];  // share, rest and symbol
  // For vectors and shares that are powers of two:
  alignas(64) uint8_t shift[kSymbols];   // of every symbol
  alignas(64) uint8_t coarse[kSymbols];  // of every eighth slot: right for those before the fine ones
  uint32_t first_fine = kWhole / 128;    // from these 128 slots on there are shares below eight
};

}}  // namespace laconic::LACONIC_ISA
