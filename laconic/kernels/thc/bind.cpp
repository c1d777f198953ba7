// Python's door to THC's ops.
#include <cstring>

#include "native/bind.h"

namespace laconic {
namespace {

// The chart, with every block inside `values` coordinates and `room` coordinates of message space.
Chart chart_of(const Of<const int64_t>& chart, size_t values, size_t room) {
  require(chart.ndim() == 2 && chart.shape(1) == 6, "a chart has six columns");
  const Chart blocks = {reinterpret_cast<const Block*>(chart.data()), chart.shape(0)};
  for (size_t k = 0; k < blocks.count; ++k) {
    const Block& block = blocks.blocks[k];
    require(block.size >= 8 && block.size <= (1 << 15) && !(block.size & (block.size - 1)),
            "a block's size is a power of two from 8 to 32768");
    require(block.numel >= 0 && block.numel <= block.size && block.start >= 0 &&
                size_t(block.start + block.numel) <= values && block.at >= 0 && block.at % 8 == 0 &&
                size_t(block.at + block.size) <= room && block.offset >= 0,
            "a block lies outside its piece");
  }
  return blocks;
}

Grid grid_of(const Of<const int64_t>& table, int bits, int granularity, double threshold) {
  require(bits >= 2 && bits <= 8 && table.size() == size_t(1) << bits, "a table has 2^bits entries, of 2 to 8 bits");
  require(granularity >= 1 && granularity <= 1023, "granularity is 1 to 1023");
  for (size_t code = 0; code < table.size(); ++code)
    require(table.data()[code] >= 0 && table.data()[code] <= granularity, "a table's entries lie on its grid");
  return {table.data(), bits, granularity, threshold};
}

void thc_norms(const Array& grad, const Optional& residual, const Of<const int64_t>& chart, const Of<float>& norms) {
  const Gradient gradient = gradient_of(grad);
  const float* old = residual_of(residual, grad);
  const Chart blocks = chart_of(chart, grad.size(), SIZE_MAX);
  require(norms.size() == blocks.count, "there is one norm for every block");
  nb::gil_scoped_release unlocked;
  chosen.kernels->thc_norms(gradient, old, blocks, norms.data());
}

void thc_encode(const Array& grad, const Optional& residual, const Of<float>& norms, const Of<const int64_t>& chart,
                const Of<const int64_t>& table, int granularity, double threshold, uint32_t shared, uint32_t own,
                int bits, uint32_t every, const RowsOf<uint8_t>& codes, const Optional& left,
                const Of<float>& quality) {
  const Gradient gradient = gradient_of(grad);
  const float* old = residual_of(residual, grad);
  float* rest = const_cast<float*>(residual_of(left, grad));
  const Grid grid = grid_of(table, bits, granularity, threshold);
  const Chart blocks = chart_of(chart, grad.size(), codes.size() * 8 / size_t(bits));
  require(norms.size() == blocks.count && quality.size() == 4 * blocks.count && every >= 1,
          "there are one norm and four qualities for every block");
  require(codes.ndim() == 2 && codes.shape(1) % size_t(bits) == 0, "codes are rows of whole groups of eight");
  const size_t stride = stride_of(codes);
  nb::gil_scoped_release unlocked;
  chosen.kernels->thc_encode(gradient, old, norms.data(), blocks, grid, {shared, own}, every, codes.data(),
                             codes.shape(1), stride, rest, reinterpret_cast<Quality*>(quality.data()));
}

void thc_combine(const RowsOf<uint8_t>& messages, const Of<const int64_t>& table, int bits, int lane,
                 const Of<uint8_t>& reply) {
  require(table.size() > 0, "a table has 2^bits entries, of 2 to 8 bits");
  const Grid grid = grid_of(table, bits, int(table.data()[table.size() - 1]), 0);
  require(messages.ndim() == 2 && messages.shape(0) >= 1 && messages.shape(1) % size_t(bits) == 0,
          "messages are rows of whole groups of eight codes");
  const size_t width = messages.shape(1) * 8 / size_t(bits);
  require(lane >= 8 && lane <= 16 && reply.size() == width * size_t(lane) / 8 + kCountBytes,
          "a reply has the sums in lanes of 8 to 16 bits, and a count");
  require(messages.shape(0) * size_t(grid.granularity) < size_t(1) << lane, "the sums do not fit their lanes");
  const size_t stride = stride_of(messages);
  nb::gil_scoped_release unlocked;
  chosen.kernels->thc_combine(messages.data(), messages.shape(0), messages.shape(1), stride, grid, lane, reply.data());
}

// The number of contributors, which stands at the end of every reply.
uint32_t count_of(const RowsOf<uint8_t>& replies) {
  const size_t bytes = replies.shape(1), stride = stride_of(replies);
  const uint8_t* const first = replies.data() + bytes - kCountBytes;
  for (size_t row = 1; row < replies.shape(0); ++row)
    require(std::memcmp(first, first + row * stride, kCountBytes) == 0,
            "the shards of a piece have different numbers of contributors");
  uint32_t count;
  std::memcpy(&count, first, kCountBytes);
  return count;
}

void thc_decode(const RowsOf<uint8_t>& replies, const Of<float>& norms, const Of<const int64_t>& chart, int granularity,
                double threshold, uint32_t shared, int lane, const Array& grad) {
  const Gradient gradient = gradient_of(grad);
  require(replies.ndim() == 2 && replies.shape(0) >= 1 && replies.shape(1) > kCountBytes && lane >= 8 && lane <= 16 &&
              (replies.shape(1) - kCountBytes) % size_t(lane) == 0,
          "replies are rows of eight lanes each, of 8 to 16 bits, and a count");
  const size_t width = (replies.shape(1) - kCountBytes) / size_t(lane) * 8;
  const Chart blocks = chart_of(chart, grad.size(), width * replies.shape(0));
  const uint32_t count = count_of(replies);
  require(count > 0 && size_t(count) * size_t(granularity) < size_t(1) << lane,
          "so many contributors have no sums in these lanes");
  require(norms.size() == blocks.count, "there is one norm for every block");
  nb::gil_scoped_release unlocked;
  chosen.kernels->thc_decode(replies.data(), replies.shape(1), stride_of(replies), int(count), norms.data(), blocks,
                             {nullptr, 0, granularity, threshold}, lane, shared, gradient);
}

}  // namespace

void bind_thc(nb::module_& module) {
#define LACONIC_OP LACONIC_BIND_OP
#include "thc/ops.inc"
#undef LACONIC_OP
}

}  // namespace laconic
