// Sealing symbols and taking them out, compiled once per instruction set; coding/__init__.py is the specification.
#include <memory>

#include "coding/cpu_ans_push.h"
#include "native/instruction_set.h"
#include "coding/cpu_sealed.h"

namespace laconic { namespace LACONIC_ISA {
namespace {

size_t symbols_in(AnsParts parts) {
  size_t count = 0;
  for (size_t k = 0; k < parts.count; ++k) count += size_t(parts.parts[k].count);
  return count;
}

// The size of the codes at `to`, which are shorter than `raw`, or `raw` if they would not be.
CodeOutcome encode(const uint8_t* symbols, size_t count, AnsParts parts, size_t raw, uint8_t* to) {
  const size_t numbers = lanes_for(count) * kNumberBytes;
  uint8_t* const end = to + raw + kSpare;
  AnsWriter writer(count, to + numbers, end);
  symbols += count;
  for (size_t k = parts.count; k-- > 0;) {
    symbols -= parts.parts[k].count;
    const PushTable table(parts.books[parts.parts[k].book]);
    const CodeFault fault = writer.push(symbols, size_t(parts.parts[k].count), table);
    if (fault == CodeFault::no_room) return {CodeFault::none, raw};
    if (fault != CodeFault::none) return {fault, 0};
  }
  const size_t words = size_t(end - writer.words());
  if (numbers + words >= raw) return {CodeFault::none, raw};
  std::memmove(to + numbers, writer.words(), words);
  std::memcpy(to, writer.numbers(), numbers);
  return {CodeFault::none, numbers + words};
}

}  // namespace

CodeOutcome seal(const uint8_t* symbols, AnsParts parts, Sealing sealing, uint8_t* message) {
  const size_t count = symbols_in(parts), raw = raw_bytes(count, sealing.width);
  uint8_t* const to = message + sealing.offset;
  const CodeOutcome coded = count ? encode(symbols, count, parts, raw, to) : CodeOutcome{CodeFault::none, raw};
  if (coded.fault != CodeFault::none) return coded;
  message[0] = coded.size < raw ? kCoded : kRaw;
  if (coded.size == raw) put_raw(symbols, count, sealing.width, to);
  return {CodeFault::none, sealing.offset + coded.size};
}

CodeFault unseal(const uint8_t* message, AnsParts parts, Sealing sealing, uint8_t* symbols) {
  Unsealing reading;
  CodeFault fault = reading.open(message, sealing, symbols_in(parts));
  for (size_t k = 0; k < parts.count && fault == CodeFault::none; ++k) {
    const auto table = reading.table(parts.books[parts.parts[k].book]);
    fault = reading.take(symbols, size_t(parts.parts[k].count), table.get());
    symbols += parts.parts[k].count;
  }
  return fault == CodeFault::none ? reading.close() : fault;
}

}}  // namespace laconic::LACONIC_ISA
