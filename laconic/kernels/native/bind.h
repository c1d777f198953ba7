// What a family's door to Python needs: the chosen instruction set, and its ops' registration.
//
// A door has a function for every op of its family, of the op's name, which checks what comes in, releases the GIL and
// calls the chosen kernel. LACONIC_BIND_OP as LACONIC_OP registers it.
#pragma once
#include <string>

#include "native/arrays.h"
#include "native/kernels.h"

namespace laconic {

extern InstructionSet chosen;

// A message is not what its worker sent: Python's DamagedMessage, with or without the GIL.
[[noreturn]] inline void damaged(size_t worker, const char* fault) {
  nb::gil_scoped_acquire locked;
  const nb::object type = nb::module_::import_("laconic.numerics.damage").attr("DamagedMessage");
  PyErr_SetObject(type.ptr(), type(worker, fault).ptr());
  throw nb::python_error();
}

// Arguments; an array that is written to comes as it is, as nobody would see a converted copy.
inline auto in(const char* name) { return nb::arg(name); }
inline auto out(const char* name) { return nb::arg(name).noconvert(); }
inline auto in_or_none(const char* name) { return nb::arg(name).none(); }
inline auto out_or_none(const char* name) { return nb::arg(name).none().noconvert(); }

#define LACONIC_BIND_OP(name, signature, ...) module.def(#name, &name, __VA_ARGS__);

}  // namespace laconic
