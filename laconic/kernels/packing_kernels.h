// The kernels on symbols of one instruction set.
#pragma once
#include "packing.h"

namespace laconic { namespace LACONIC_ISA {

UnpackSymbols unpack_symbols;
CountRuns count_runs;

}}  // namespace laconic::LACONIC_ISA
