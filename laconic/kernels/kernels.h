// What every instruction set provides. kernels.cpp is compiled once for each; module.cpp picks one at import.
#pragma once
#include <cstddef>
#include <cstdint>

namespace laconic {

enum class Format { fp32, bf16, fp16 };

struct Kernels {
  // out[i] = (sum over rows of messages[row][i]) / rows, added in row order in fp32.
  void (*average)(const void* messages, size_t rows, size_t columns, Format format, void* out);
  // Whether no value is an infinity or a NaN.
  bool (*all_finite)(const void* values, size_t count, Format format);
};

namespace portable { extern const Kernels kernels; }
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }

}  // namespace laconic
