// Symbols, a byte each: what their kernels take; kernels/packing.py is the specification.
#pragma once
#include <cstddef>
#include <cstdint>

namespace laconic {

using UnpackSymbols = void(const uint8_t* packed, int bits, size_t count, uint8_t* symbols);
using CountRuns = void(const uint8_t* symbols, size_t count, size_t run, int32_t* counts);

}  // namespace laconic
