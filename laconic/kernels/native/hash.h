// Streams of random words from counters; numerics/rng.py says what they are.
#pragma once
#include <cstdint>

#include "native/vectors.h"

namespace laconic { namespace LACONIC_ISA {

template <class T> inline T hashed(T word) {
  word = (word ^ (word >> 16)) * 0x7feb352du;
  word = (word ^ (word >> 15)) * 0x846ca68bu;
  return word ^ (word >> 16);
}

inline uint32_t branch(uint32_t key, uint32_t number) { return hashed(key ^ number); }

// words[i] = word `start + i` of the stream, for i < count rounded up to whole vectors.
inline void draw(uint32_t key, uint32_t start, size_t count, uint32_t* words) {
  for (size_t i = 0; i < count; i += kLanes)
    store(words + i, hashed(Words(lane_numbers() + (key + start + uint32_t(i)))));
}

}}  // namespace laconic::LACONIC_ISA
