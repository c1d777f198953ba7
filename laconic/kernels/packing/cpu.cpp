// Symbols out of packed bits, and counted, compiled once per instruction set; packing/__init__.py is the specification.
#include <algorithm>
#include <cstring>
#ifdef __BMI2__
#include <immintrin.h>
#endif

#include "native/instruction_set.h"

namespace laconic { namespace LACONIC_ISA {
namespace {

constexpr size_t kGroup = 8;  // so many symbols fill whole bytes
constexpr size_t kSymbolKinds = 256;
constexpr size_t kTables = 4;  // neighbors are counted apart: equal ones would wait for each other

// Eight values of so many bits, each in the lower bits of a byte.
template <int bits> uint64_t spread_bits(uint64_t held) {
#ifdef __BMI2__
  return _pdep_u64(held, 0x0101010101010101 * ((1 << bits) - 1));
#else
  uint64_t spread = 0;
  for (size_t i = 0; i < kGroup; ++i) spread |= (held >> (i * bits) & ((1 << bits) - 1)) << (8 * i);
  return spread;
#endif
}

template <int bits> void unpack_all(const uint8_t* packed, size_t count, uint8_t* symbols) {
  const size_t bytes = (count * bits + 7) / 8;
  size_t at = 0;
  for (; at + kGroup <= count && at / kGroup * bits + 8 <= bytes; at += kGroup) {
    uint64_t held;
    std::memcpy(&held, packed + at / kGroup * bits, 8);
    const uint64_t spread = spread_bits<bits>(held);
    std::memcpy(symbols + at, &spread, kGroup);
  }
  for (; at < count; at += kGroup) {  // the last eight bytes, beyond which nothing may be read
    uint64_t held = 0;
    std::memcpy(&held, packed + at / kGroup * bits, std::min(size_t(bits), bytes - at / kGroup * bits));
    const uint64_t spread = spread_bits<bits>(held);
    std::memcpy(symbols + at, &spread, std::min(kGroup, count - at));
  }
}

}  // namespace

void unpack_symbols(const uint8_t* packed, int bits, size_t count, uint8_t* symbols) {
  using Unpack = void(const uint8_t*, size_t, uint8_t*);
  static Unpack* const by_bits[] = {unpack_all<1>, unpack_all<2>, unpack_all<3>, unpack_all<4>,
                                    unpack_all<5>, unpack_all<6>, unpack_all<7>};
  if (bits == 8) return void(std::memcpy(symbols, packed, count));
  by_bits[bits - 1](packed, count, symbols);
}

void count_runs(const uint8_t* symbols, size_t count, size_t run, int32_t* counts) {
  for (size_t at = 0; at < count; at += run, counts += kSymbolKinds) {
    int32_t tables[kTables][kSymbolKinds] = {};
    const size_t here = std::min(run, count - at), whole = here / kTables * kTables;
    for (size_t i = 0; i < whole; i += kTables)
      for (size_t k = 0; k < kTables; ++k) ++tables[k][symbols[at + i + k]];
    for (size_t i = whole; i < here; ++i) ++tables[0][symbols[at + i]];
    for (size_t s = 0; s < kSymbolKinds; ++s) counts[s] = tables[0][s] + tables[1][s] + tables[2][s] + tables[3][s];
  }
}

}}  // namespace laconic::LACONIC_ISA
