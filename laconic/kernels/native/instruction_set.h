// The kernels of one instruction set: every folder's cpu*.cpp is compiled once for each, in its own namespace.
#pragma once
#include "native/kernels.h"

namespace laconic { namespace LACONIC_ISA {

#define LACONIC_OP(name, signature, ...) Signature<signature> name;
#include "ops.inc"

}}  // namespace laconic::LACONIC_ISA
