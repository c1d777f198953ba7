// GenNorm's kernels: what they take; gennorm/__init__.py is the specification.
#pragma once
#include "coding/cpu.h"
#include "native/formats.h"

namespace laconic {

// A sign, bits of exponent and bits of mantissa, as numerics/minifloat.py has them.
struct Minifloat {
  int exponent, mantissa, bias;

  constexpr int bits() const { return 1 + exponent + mantissa; }
  constexpr uint32_t zero() const { return (((1u << exponent) - 1) << mantissa) - 1; }  // its code
  constexpr uint32_t levels() const { return 2 * zero() + 1; }
};

constexpr Minifloat kE5m2 = {5, 2, 15}, kE4m3 = {4, 3, 10}, kFp4 = {2, 1, 1};

// Coordinates from `start` on.
struct LevelSpan {
  int64_t start, count;
};

// The same, and the number of their book, or -1 if all of them are zero.
struct LevelPart {
  int64_t start, count, book;
};

struct Moments {
  double sum, squares;
};

struct LevelScale {
  float scale, inverse;
};

// memory · old + grad; `left` is what the levels do not say.
struct Residual {
  const float* old;
  float memory;
  float* left;
};

using LevelCounts = int32_t[kSymbols];

// A message that something is to be read from.
struct Leveled {
  const uint8_t* bytes;
  Sealing sealing;
  const LevelPart* parts;
  const float* inverses;
};

struct LevelFault {
  CodeFault fault;
  size_t message;
};

}  // namespace laconic
