// What THC's kernels take; kernels/thc.py is their specification.
#pragma once
#include <cstddef>
#include <cstdint>

#include "formats.h"

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

// The kernels; kernels/thc.py says what each does. A residual or what is left may be null.
using ThcNorms = void(const Gradient& grad, const float* residual, Chart chart, float* norms);
using ThcEncode = void(const Gradient& grad, const float* residual, const float* norms, Chart chart, const Grid& grid,
                       Keys keys, uint32_t every, uint8_t* codes, float* left, Quality* quality);
using ThcCombine = void(const uint8_t* messages, size_t workers, size_t bytes, const Grid& grid, int lane,
                        uint8_t* reply);
using ThcDecode = void(const uint8_t* replies, size_t bytes, int count, const float* norms, Chart chart,
                       const Grid& grid, int lane, uint32_t key, const Gradient& grad);

}  // namespace laconic
