// All kernels of one instruction set.
#include "native/instruction_set.h"

namespace laconic { namespace LACONIC_ISA {

const Kernels kernels = {
#define LACONIC_OP(name, ...) name,
#include "ops.inc"
};

}}  // namespace laconic::LACONIC_ISA
