// Symbols of one to eight bits, packed: as taken out bit by bit.
//
//   bits       one byte
//   count      two bytes: how many symbols
//   packed     the rest, as long as it must be
#include "input.h"

using namespace laconic;
using namespace laconic::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  Input input(bytes, size);
  const size_t bits = 1 + input.number(1) % 8, told = input.number(2);
  const size_t count = std::min(told, input.left() * 8 / bits);
  const Bytes packed = input.take((count * bits + 7) / 8);
  const Bytes symbols = alike([&](const Kernels& kernels) {
    Bytes found(count);
    kernels.unpack_symbols(packed.data(), int(bits), count, found.data());
    return found;
  });
  for (size_t i = 0; i < count; ++i) {
    unsigned symbol = 0;
    for (size_t bit = i * bits; bit < (i + 1) * bits; ++bit)
      symbol |= unsigned(packed[bit / 8] >> bit % 8 & 1) << (bit - i * bits);
    demand(symbols[i] == symbol, "a symbol is its bits");
  }
  return 0;
}
