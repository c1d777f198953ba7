// Messages of the lossless stage: what is understood can be said again, and cannot be longer or shorter.
#include "codes.h"

namespace laconic { namespace fuzz {
namespace {

constexpr size_t kOften = 1 << 16;  // symbols: more are taken out once, as that takes long

struct Sealed {
  CodeFault fault;
  Bytes message;

  bool operator==(const Sealed& other) const { return fault == other.fault && message == other.message; }
};

// Not all symbols can be said in codes: those that are raw may have no share.
Sealed sealed(const Codes& codes, const Bytes& symbols) {
  return alike([&](const Kernels& kernels) {
    const Bytes room(codes.offset + raw_bytes(symbols.size(), codes.width()) + kSpare);
    const CodeOutcome outcome =
        kernels.seal(symbols.data(), codes.all(), codes.sealing(room.size()), room.data());
    return Sealed{outcome.fault, room.begun(outcome.fault == CodeFault::none ? outcome.size : 0)};
  });
}

void resize(const Codes& codes, const Bytes& message) {
  const Bytes longer(message.size() + 1);
  std::copy_n(message.data(), message.size(), longer.data());
  for (const Bytes& changed : {message.begun(message.size() - 1), longer})
    demand(unsealed(codes, changed).fault != CodeFault::none, "a message that was cut or extended is refused");
}

}  // namespace
}}  // namespace laconic::fuzz

using namespace laconic;
using namespace laconic::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  Input input(bytes, size);
  const Codes codes(input);
  const Bytes message = input.rest();
  const Unsealed found = unsealed(codes, message);
  if (found.fault != CodeFault::none || codes.symbols > kOften) return 0;
  resize(codes, message);
  const Sealed again = sealed(codes, found.symbols);
  demand(again.fault != CodeFault::none || unsealed(codes, again.message) == found, "what is sealed comes out");
  return 0;
}
