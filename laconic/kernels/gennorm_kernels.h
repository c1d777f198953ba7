// GenNorm's kernels of one instruction set.
#pragma once
#include "gennorm.h"

namespace laconic { namespace LACONIC_ISA {

GennormMoments gennorm_moments;
GennormQuantize gennorm_quantize;
GennormAverage gennorm_average;

}}  // namespace laconic::LACONIC_ISA
