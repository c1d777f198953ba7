// The kernels, compiled once per instruction set under the namespace LACONIC_ISA.
#include "kernels.h"

#include <algorithm>

#include "coding_kernels.h"
#include "floats.h"
#include "gennorm_kernels.h"
#include "packing_kernels.h"
#include "sign_vote_kernels.h"
#include "thc_kernels.h"

namespace laconic { namespace LACONIC_ISA {
namespace {

constexpr size_t kTile = 1024;  // fp32 sums of one tile stay in the first-level cache

template <class T>
void average_rows(const T* messages, size_t rows, size_t columns, T* out) {
  alignas(64) float sum[kTile], row[kTile];
  for (size_t start = 0; start < columns; start += kTile) {
    const size_t count = std::min(kTile, columns - start);
    widen(messages + start, sum, count);
    for (size_t r = 1; r < rows; ++r) {
      widen(messages + r * columns + start, row, count);
      for (size_t i = 0; i < count; ++i) sum[i] += row[i];
    }
    for (size_t i = 0; i < count; ++i) sum[i] /= float(rows);
    narrow(sum, out + start, count);
  }
}

void average(const void* messages, size_t rows, size_t columns, Format format, void* out) {
  switch (format) {
    case Format::fp32:
      return average_rows(static_cast<const float*>(messages), rows, columns, static_cast<float*>(out));
    case Format::bf16:
      return average_rows(static_cast<const Bfloat*>(messages), rows, columns, static_cast<Bfloat*>(out));
    case Format::fp16:
      return average_rows(static_cast<const Half*>(messages), rows, columns, static_cast<Half*>(out));
  }
}

template <class Bits>
bool exponents_below(const void* values, size_t count, Bits exponent) {
  const Bits* bits = static_cast<const Bits*>(values);
  for (size_t start = 0; start < count; start += kTile) {
    const size_t stop = std::min(count, start + kTile);
    Bits bad = 0;
    for (size_t i = start; i < stop; ++i) bad |= Bits((bits[i] & exponent) == exponent);
    if (bad) return false;
  }
  return true;
}

bool all_finite(const void* values, size_t count, Format format) {
  switch (format) {
    case Format::fp32: return exponents_below<uint32_t>(values, count, 0x7f800000);
    case Format::bf16: return exponents_below<uint16_t>(values, count, 0x7f80);
    case Format::fp16: return exponents_below<uint16_t>(values, count, 0x7c00);
  }
  return false;
}

}  // namespace

const Kernels kernels = {average,     all_finite, thc_norms,    thc_encode,  thc_combine, thc_decode,
                         sign_select, sign_pack,  sign_combine, sign_decode, seal,        unseal,
                         checksum,    gennorm_moments, gennorm_quantize, gennorm_average,
                         unpack_symbols, count_runs};

}}  // namespace laconic::LACONIC_ISA
