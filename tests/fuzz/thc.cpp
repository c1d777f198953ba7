// THC's codes, which are added, and sums, which become gradients.
//
//   grid       one byte each: bits of a code, bits of a sum; two: granularity; and 2^bits entries of two
//   workers    one byte
//   blocks     one byte: how many; of each: one byte, its size's logarithm, and two, how many values it is short of
//   shards     one byte
//   norms      four bytes for each block
//   codes      of all workers
//   replies    their sums, and how many there are
#include "input.h"

namespace laconic { namespace fuzz {
namespace {

constexpr Format kGradients[] = {Format::fp32, Format::bf16, Format::fp16};
constexpr double kThreshold = 2.1538746940614564;  // of which a 32nd is beyond

constexpr int64_t kMost = 8192;  // coordinates of all blocks

struct Grids {
  int bits, lane, granularity;
  size_t workers;
  std::vector<int64_t> table;

  explicit Grids(Input& input) {
    bits = 2 + int(input.number(1) % 7);
    lane = 8 + int(input.number(1) % 9);
    const int most = (1 << lane) - 1;
    granularity = 1 + int(input.number(2)) % std::min(1023, most);
    for (size_t k = size_t(1) << bits; k--;) table.push_back(int64_t(input.number(2)) % (granularity + 1));
    workers = 1 + input.number(1) % std::min<size_t>(16, size_t(most / granularity));
    table.back() = granularity;
  }
  Grid grid() const { return {table.data(), bits, granularity, kThreshold}; }
};

struct Layout {
  std::vector<Block> blocks;
  size_t shards, width, numel = 0;  // of a shard, and of the gradient

  explicit Layout(Input& input) {
    int64_t at = 0;
    for (size_t k = 1 + input.number(1) % 12; k--;) {
      const int64_t size = int64_t(8) << input.number(1) % 10;
      const int64_t filled = size - int64_t(input.number(2)) % size;
      if (at + size > kMost) break;
      blocks.push_back({int64_t(k), 0, int64_t(numel), filled, size, at});
      at += size;
      numel += size_t(filled);
    }
    shards = 1 + input.number(1) % 5;
    width = (size_t(at) + 8 * shards - 1) / (8 * shards) * 8;
  }
  Chart chart() const { return {blocks.data(), blocks.size()}; }
};

Bytes combined(const Grids& grids, const Bytes& codes, size_t width) {
  return alike([&](const Kernels& kernels) {
    Bytes reply(width * size_t(grids.lane) / 8 + kCountBytes);
    const size_t bytes = codes.size() / grids.workers;
    kernels.thc_combine(codes.data(), grids.workers, bytes, bytes, grids.grid(), grids.lane,
                        reply.data());
    return reply;
  });
}

// Integers of so many bits.
std::vector<int> unpacked(const uint8_t* packed, size_t count, int bits) {
  std::vector<int> values(count);
  for (size_t bit = 0; bit < count * size_t(bits); ++bit)
    values[bit / size_t(bits)] |= (packed[bit / 8] >> bit % 8 & 1) << bit % size_t(bits);
  return values;
}

void add(const Grids& grids, const Bytes& codes, size_t width, const Bytes& reply) {
  std::vector<int> sums(width);
  for (size_t worker = 0; worker < grids.workers; ++worker) {
    const std::vector<int> own = unpacked(codes.data() + worker * codes.size() / grids.workers, width, grids.bits);
    for (size_t i = 0; i < width; ++i) sums[i] += int(grids.table[size_t(own[i])]);
  }
  demand(unpacked(reply.data(), width, grids.lane) == sums, "a reply has the sums");
}

Bytes decoded(const Kernels& kernels, const Grids& grids, const Layout& layout, const Buffer<float>& norms,
              const Bytes& replies, uint32_t count, Format format) {
  Bytes grad(layout.numel * (format == Format::fp32 ? 4 : 2));
  const size_t bytes = replies.size() / layout.shards;
  kernels.thc_decode(replies.data(), bytes, bytes, int(count), norms.data(), layout.chart(),
                     {nullptr, 0, grids.granularity, kThreshold}, grids.lane, 77, {grad.data(), format});
  return grad;
}

// The number of contributors as the door lets it in, or 0.
uint32_t count_of(const Bytes& replies, const Layout& layout, const Grids& grids) {
  const size_t row = replies.size() / layout.shards;
  const uint8_t* const first = replies.data() + row - kCountBytes;
  for (size_t k = 1; k < layout.shards; ++k)
    if (std::memcmp(first, first + k * row, kCountBytes)) return 0;
  uint32_t count;
  std::memcpy(&count, first, kCountBytes);
  return size_t(count) * size_t(grids.granularity) < size_t(1) << grids.lane ? count : 0;
}

// Whether so many workers can have these sums: then all instruction sets decode them alike.
bool possible(const Bytes& replies, const Layout& layout, const Grids& grids, uint32_t count) {
  for (size_t shard = 0; shard < layout.shards; ++shard)
    for (int sum : unpacked(replies.data() + shard * replies.size() / layout.shards, layout.width, grids.lane))
      if (sum > int(count) * grids.granularity) return false;
  return true;
}

}  // namespace
}}  // namespace laconic::fuzz

using namespace laconic;
using namespace laconic::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  Input input(bytes, size);
  const Grids grids(input);
  const Format format = kGradients[input.number(1) % 3];
  const Layout layout(input);
  const Bytes norm_bytes = input.filled(4 * layout.blocks.size());
  Buffer<float> norms(layout.blocks.size());
  std::memcpy(norms.data(), norm_bytes.data(), norm_bytes.size());
  const Bytes codes = input.filled(grids.workers * layout.width * size_t(grids.bits) / 8);
  add(grids, codes, layout.width, combined(grids, codes, layout.width));
  const Bytes replies = input.filled(layout.shards * (layout.width * size_t(grids.lane) / 8 + kCountBytes));
  const uint32_t count = count_of(replies, layout, grids);
  if (!count) return 0;
  if (possible(replies, layout, grids, count))
    alike([&](const Kernels& kernels) { return decoded(kernels, grids, layout, norms, replies, count, format); });
  else
    for (const InstructionSet& set : sets()) decoded(*set.kernels, grids, layout, norms, replies, count, format);
  return 0;
}
