// What every instruction set provides. kernels.cpp is compiled once for each; module.cpp picks one at import.
#pragma once
#include <cstddef>
#include <cstdint>

#include "thc.h"

namespace laconic {

struct Kernels {
  // out[i] = (sum over rows of messages[row][i]) / rows, added in row order in fp32.
  void (*average)(const void* messages, size_t rows, size_t columns, Format format, void* out);
  // Whether no value is an infinity or a NaN.
  bool (*all_finite)(const void* values, size_t count, Format format);
  // THC: kernels/thc.py says what each does. A residual or what is left may be null.
  void (*thc_norms)(const Gradient& grad, const float* residual, Chart chart, float* norms);
  void (*thc_encode)(const Gradient& grad, const float* residual, const float* norms, Chart chart, const Grid& grid,
                     Keys keys, Sample sample, uint8_t* codes, float* left, Quality* quality);
  void (*thc_combine)(const uint8_t* messages, size_t workers, size_t bytes, const Grid& grid, int lane,
                      uint8_t* reply);
  void (*thc_decode)(const uint8_t* replies, size_t bytes, int count, const float* norms, Chart chart,
                     const Grid& grid, int lane, uint32_t key, const Gradient& grad);
};

namespace portable { extern const Kernels kernels; }
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }

}  // namespace laconic
