// What THC's kernels take; kernels/thc.py is their specification.
#pragma once
#include <cstddef>
#include <cstdint>

namespace laconic {

enum class Format { fp32, bf16, fp16 };

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

// Which blocks' quality is measured.
struct Sample {
  uint32_t own, every;
  bool has(size_t block) const { return (block + own) % every == 0; }
};

// Of a block, where it was measured.
struct Quality {
  float error, energy, clamped, coordinates;
};

struct Gradient {
  void* values;
  Format format;
};

constexpr size_t kCountBytes = 4;
constexpr int kUnit = 256;
constexpr float kTiny = 0x1p-90f;

}  // namespace laconic
