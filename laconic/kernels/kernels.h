// What every instruction set provides. kernels.cpp is compiled once for each; module.cpp picks one at import.
#pragma once
#include <cstddef>
#include <cstdint>

#include "coding.h"
#include "gennorm.h"
#include "packing.h"
#include "sign_vote.h"
#include "thc.h"

namespace laconic {

struct Kernels {
  // out[i] = (sum over rows of messages[row][i]) / rows, added in row order in fp32.
  void (*average)(const void* messages, size_t rows, size_t columns, Format format, void* out);
  // Whether no value is an infinity or a NaN.
  bool (*all_finite)(const void* values, size_t count, Format format);
  // out[o][w] = sum over rows of deltas[row][o] * inputs[row][w], added in row order.
  void (*product)(const float* deltas, const float* inputs, size_t rows, size_t outputs, size_t width, float* out);
  ThcNorms* thc_norms;
  ThcEncode* thc_encode;
  ThcCombine* thc_combine;
  ThcDecode* thc_decode;
  SignSelect* sign_select;
  SignPack* sign_pack;
  SignCombine* sign_combine;
  SignDecode* sign_decode;
  Seal* seal;
  Unseal* unseal;
  Checksum* checksum;
  GennormMoments* gennorm_moments;
  GennormQuantize* gennorm_quantize;
  GennormAverage* gennorm_average;
  UnpackSymbols* unpack_symbols;
  CountRuns* count_runs;
};

namespace portable { extern const Kernels kernels; }
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }

}  // namespace laconic
