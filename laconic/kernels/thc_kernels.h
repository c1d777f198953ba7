// THC's kernels of one instruction set.
#pragma once
#include "thc.h"

namespace laconic { namespace LACONIC_ISA {

ThcNorms thc_norms;
ThcEncode thc_encode;
ThcCombine thc_combine;
ThcDecode thc_decode;

}}  // namespace laconic::LACONIC_ISA
