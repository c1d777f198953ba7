// Integers of 9 to 16 bits, packed eight at a time: eight of them take as many bytes as each has bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#ifdef __BMI2__
#include <immintrin.h>
#endif

namespace laconic { namespace LACONIC_ISA {

constexpr size_t kWordGroup = 8;

// The lowest `bits` of four words, one behind the other, and back.
template <int bits> uint64_t squeezed(uint64_t words) {
  constexpr uint64_t mask = 0x0001000100010001 * ((uint64_t(1) << bits) - 1);
#ifdef __BMI2__
  return _pext_u64(words, mask);
#else
  uint64_t held = 0;
  for (int i = 0; i < 4; ++i) held |= ((words & mask) >> (16 * i) & 0xffff) << (bits * i);
  return held;
#endif
}
template <int bits> uint64_t spread_words(uint64_t held) {
  constexpr uint64_t mask = 0x0001000100010001 * ((uint64_t(1) << bits) - 1);
#ifdef __BMI2__
  return _pdep_u64(held, mask);
#else
  uint64_t words = 0;
  for (int i = 0; i < 4; ++i) words |= (held >> (bits * i) & mask & 0xffff) << (16 * i);
  return words;
#endif
}

template <int bits> void pack_words(const uint16_t* words, size_t count, uint8_t* out) {
  for (size_t at = 0; at < count; at += kWordGroup, out += bits) {
    uint64_t first, second;
    std::memcpy(&first, words + at, 8);
    std::memcpy(&second, words + at + 4, 8);
    first = squeezed<bits>(first), second = squeezed<bits>(second);
    if constexpr (bits < 16) {
      first |= second << (4 * bits);
      second >>= 64 - 4 * bits;
    }
    std::memcpy(out, &first, 8);
    std::memcpy(out + 8, &second, bits - 8);
  }
}

template <int bits> void unpack_words(const uint8_t* packed, size_t count, uint16_t* words) {
  for (size_t at = 0; at < count; at += kWordGroup, packed += bits) {
    uint64_t first, second = 0;
    std::memcpy(&first, packed, 8);
    std::memcpy(&second, packed + 8, bits - 8);
    if constexpr (bits < 16) second = second << (64 - 4 * bits) | first >> (4 * bits);
    first = spread_words<bits>(first), second = spread_words<bits>(second);
    std::memcpy(words + at, &first, 8);
    std::memcpy(words + at + 4, &second, 8);
  }
}

using PackWords = void(const uint16_t* words, size_t count, uint8_t* out);
using UnpackWords = void(const uint8_t* packed, size_t count, uint16_t* words);

// For 9 to 16 bits; counts are multiples of eight.
inline PackWords* word_packer(int bits) {
  static PackWords* const by_bits[] = {pack_words<9>,  pack_words<10>, pack_words<11>, pack_words<12>,
                                       pack_words<13>, pack_words<14>, pack_words<15>, pack_words<16>};
  return by_bits[bits - 9];
}
inline UnpackWords* word_unpacker(int bits) {
  static UnpackWords* const by_bits[] = {unpack_words<9>,  unpack_words<10>, unpack_words<11>, unpack_words<12>,
                                         unpack_words<13>, unpack_words<14>, unpack_words<15>, unpack_words<16>};
  return by_bits[bits - 9];
}

}}  // namespace laconic::LACONIC_ISA
