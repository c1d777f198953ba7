// Messages of levels beside a sound one: their mean is there exactly if the lossless stage understands them.
//
// Behind what codes.h says: one byte for the gradient's format and one for each part's scale come before the message.
#include <cmath>

#include "codes.h"

namespace laconic { namespace fuzz {
namespace {

constexpr Format kGradients[] = {Format::fp32, Format::bf16, Format::fp16};

struct Mean {
  LevelFault fault;
  Bytes values;

  bool operator==(const Mean& other) const {
    return fault.fault == other.fault.fault && fault.message == other.fault.message &&
           (fault.fault != CodeFault::none || values == other.values);
  }
};

// Zeros that are not coded.
Bytes sound(const Codes& codes) {
  const Bytes message(codes.offset + raw_bytes(codes.symbols, codes.width()));
  std::fill(message.begin(), message.end(), uint8_t(0));
  message[0] = kRaw;
  return message;
}

Mean averaged(const Codes& codes, const std::vector<float>& inverses, Format gradient,
              const std::vector<const Bytes*>& messages) {
  std::vector<Leveled> all;
  for (const Bytes* message : messages)
    all.push_back({message->data(), codes.sealing(message->size()), codes.levels.data(), inverses.data()});
  return alike([&](const Kernels& kernels) {
    Mean mean = {{}, Bytes(codes.numel * (gradient == Format::fp32 ? 4 : 2))};
    mean.fault = kernels.gennorm_average(all.data(), all.size(), codes.levels.size(), codes.views.data(), codes.format,
                                         {mean.values.data(), gradient});
    return mean;
  });
}

}  // namespace
}}  // namespace laconic::fuzz

using namespace laconic;
using namespace laconic::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  Input input(bytes, size);
  const Codes codes(input);
  const Format gradient = kGradients[input.number(1) % 3];
  std::vector<float> inverses;
  for (size_t k = 0; k < codes.levels.size(); ++k)
    inverses.push_back(std::ldexp(1.0f, int(input.number(1) % 253) - 126));
  const Bytes message = input.rest(), zeros = sound(codes);
  const Unsealed alone = unsealed(codes, message);
  const bool understood = alone.fault == CodeFault::none && codes.known(alone.symbols);
  const Mean single = averaged(codes, inverses, gradient, {&message});
  const Mean beside = averaged(codes, inverses, gradient, {&zeros, &message});
  demand(understood == (single.fault.fault == CodeFault::none), "a mean of one is refused as its symbols are");
  demand(understood == (beside.fault.fault == CodeFault::none), "beside a sound message it is the same");
  demand(understood || beside.fault.message == 1, "the right worker is blamed");
  return 0;
}
