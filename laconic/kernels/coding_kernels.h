// The lossless stage's kernels of one instruction set.
#pragma once
#include "coding.h"

namespace laconic { namespace LACONIC_ISA {

Seal seal;
Unseal unseal;
Checksum checksum;

}}  // namespace laconic::LACONIC_ISA
