// The plain kernels, compiled once per instruction set; plain/__init__.py is their specification.
#include <algorithm>
#include <vector>

#include "native/floats.h"
#include "native/instruction_set.h"
#include "native/streaming.h"

namespace laconic { namespace LACONIC_ISA {
namespace {

constexpr size_t kTile = 1024;  // fp32 sums of one tile stay in the first-level cache

template <class T>
void average_rows(const T* messages, size_t rows, size_t columns, size_t stride, T* out) {
  alignas(64) float sum[kTile], row[kTile];
  for (size_t start = 0; start < columns; start += kTile) {
    const size_t count = std::min(kTile, columns - start);
    widen(messages + start, sum, count);
    for (size_t r = 1; r < rows; ++r) {
      widen(messages + r * stride + start, row, count);
      for (size_t i = 0; i < count; ++i) sum[i] += row[i];
    }
    for (size_t i = 0; i < count; ++i) sum[i] /= float(rows);
    narrow(sum, out + start, count);
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

constexpr size_t kAbreast = 4;                // vectors of a row, and rows, whose sums stay in registers
constexpr size_t kWidth = kAbreast * kLanes;  // columns at a time: their inputs stay in the first-level cache

struct Factors {
  const float* deltas;  // rows of `outputs`
  const float* inputs;  // rows of which the next is `stride` away
  size_t rows, outputs, stride;
};

// `Height` rows of the result, `Vectors` vectors wide, added in the order of the factors' rows.
template <size_t Height, size_t Vectors>
void multiply(const Factors& given, size_t output, float* out, size_t stride) {
  Floats sums[Height][Vectors] = {};
  const float *deltas = given.deltas + output, *inputs = given.inputs;
  for (size_t row = 0; row < given.rows; ++row, deltas += given.outputs, inputs += given.stride) {
    Floats values[Vectors];
    for (size_t v = 0; v < Vectors; ++v) values[v] = load<Floats>(inputs + v * kLanes);
    for (size_t i = 0; i < Height; ++i)
      for (size_t v = 0; v < Vectors; ++v) sums[i][v] += all(deltas[i]) * values[v];
  }
  for (size_t i = 0; i < Height; ++i, out += stride)
    for (size_t v = 0; v < Vectors; ++v)
      streamable(out) ? stream(out + v * kLanes, sums[i][v]) : store(out + v * kLanes, sums[i][v]);
}

// All rows of some whole vectors of columns.
template <size_t Vectors> void multiply_all(const Factors& given, float* out, size_t stride) {
  size_t output = 0;
  for (; output + kAbreast <= given.outputs; output += kAbreast)
    multiply<kAbreast, Vectors>(given, output, out + output * stride, stride);
  for (; output < given.outputs; ++output) multiply<1, Vectors>(given, output, out + output * stride, stride);
}

// All rows of fewer columns than a vector has, by way of one that is as wide.
void multiply_edge(const Factors& given, size_t count, float* out, size_t stride) {
  std::vector<float> inputs(given.rows * kLanes), results(given.outputs * kLanes);
  for (size_t row = 0; row < given.rows; ++row)
    std::copy_n(given.inputs + row * given.stride, count, inputs.data() + row * kLanes);
  multiply_all<1>({given.deltas, inputs.data(), given.rows, given.outputs, kLanes}, results.data(), kLanes);
  published();
  for (size_t output = 0; output < given.outputs; ++output)
    std::copy_n(results.data() + output * kLanes, count, out + output * stride);
}

}  // namespace

void average(const void* messages, size_t rows, size_t columns, size_t stride, Format format, void* out) {
  switch (format) {
    case Format::fp32:
      return average_rows(static_cast<const float*>(messages), rows, columns, stride, static_cast<float*>(out));
    case Format::bf16:
      return average_rows(static_cast<const Bfloat*>(messages), rows, columns, stride, static_cast<Bfloat*>(out));
    case Format::fp16:
      return average_rows(static_cast<const Half*>(messages), rows, columns, stride, static_cast<Half*>(out));
  }
}

bool all_finite(const void* values, size_t count, Format format) {
  switch (format) {
    case Format::fp32: return exponents_below<uint32_t>(values, count, 0x7f800000);
    case Format::bf16: return exponents_below<uint16_t>(values, count, 0x7f80);
    case Format::fp16: return exponents_below<uint16_t>(values, count, 0x7c00);
  }
  return false;
}

void product(const float* deltas, const float* inputs, size_t rows, size_t outputs, size_t width, float* out) {
  for (size_t start = 0, count; start < width; start += count) {
    const Factors given = {deltas, inputs + start, rows, outputs, width};
    const size_t into_line = reinterpret_cast<uintptr_t>(out + start) / sizeof(float) % kLanes, left = width - start;
    if (into_line || left < size_t(kLanes))  // what follows begins where a vector may be streamed to
      multiply_edge(given, count = std::min(kLanes - into_line, left), out + start, width);
    else if (left < kWidth)
      multiply_all<1>(given, out + start, width), count = kLanes;
    else
      multiply_all<kAbreast>(given, out + start, width), count = kWidth;
  }
  published();
}

}}  // namespace laconic::LACONIC_ISA
