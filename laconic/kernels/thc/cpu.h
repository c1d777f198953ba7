// What THC's kernels take; thc/__init__.py is their specification.
#pragma once
#include <cstddef>
#include <cstdint>

#include "native/formats.h"

namespace laconic {

struct Block {
  int64_t parameter, offset, start, numel, size, at;
};

struct Chart {
  const Block* blocks;
  size_t count;
};

struct Grid {
  const int64_t* table;
  int bits, granularity;
  double threshold;
};

struct Keys {
  uint32_t shared, own;
};

// Of a block, where it was measured.
struct Quality {
  float error, energy, clamped, coordinates;
};

constexpr size_t kCountBytes = 4;
constexpr int kUnit = 256;
constexpr float kTiny = 0x1p-90f;

}  // namespace laconic
