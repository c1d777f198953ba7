// Python's door to the C++ kernels: checks what comes in, releases the GIL, calls the chosen instruction set.
#include <cstdlib>
#include <cstring>

#include "arrays.h"

namespace nb = nanobind;
using namespace laconic;

namespace {

// Fastest first; the last one runs everywhere.
std::vector<InstructionSet> available() {
  std::vector<InstructionSet> sets;
#ifdef LACONIC_HAS_avx512
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    sets.push_back({"avx512", &avx512::kernels});
#endif
#ifdef LACONIC_HAS_avx2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
      __builtin_cpu_supports("bmi2"))
    sets.push_back({"avx2", &avx2::kernels});
#endif
  sets.push_back({"portable", &portable::kernels});
  return sets;
}

}  // namespace

InstructionSet laconic::chosen = available().front();

namespace {

void choose(const std::string& name) {
  for (const auto& set : available())
    if (set.name == name) {
      chosen = set;
      return;
    }
  throw nb::value_error(("this machine has no instruction set called " + name).c_str());
}

void average(const Array& messages, const Array& out) {
  if (messages.ndim() != 2 || messages.shape(0) < 1 || messages.shape(1) != out.size())
    throw nb::value_error("average takes messages (rows, columns) and out (columns)");
  const Format format = format_of(messages);
  if (format != format_of(out)) throw nb::type_error("messages and out differ in dtype");
  nb::gil_scoped_release unlocked;
  chosen.kernels->average(messages.data(), messages.shape(0), messages.shape(1), format, out.data());
}

bool all_finite(const Array& values) {
  const Format format = format_of(values);
  nb::gil_scoped_release unlocked;
  return chosen.kernels->all_finite(values.data(), values.size(), format);
}

void product(const Of<const float>& deltas, const Of<const float>& inputs, const Of<float>& out) {
  require(deltas.ndim() == 2 && inputs.ndim() == 2 && out.ndim() == 2 && deltas.shape(0) == inputs.shape(0) &&
              out.shape(0) == deltas.shape(1) && out.shape(1) == inputs.shape(1),
          "product takes deltas (rows, outputs), inputs (rows, width) and out (outputs, width)");
  nb::gil_scoped_release unlocked;
  chosen.kernels->product(deltas.data(), inputs.data(), deltas.shape(0), out.shape(0), out.shape(1), out.data());
}

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
                int bits, uint32_t every, const Of<uint8_t>& codes, const Optional& left, const Of<float>& quality) {
  const Gradient gradient = gradient_of(grad);
  const float* old = residual_of(residual, grad);
  float* rest = const_cast<float*>(residual_of(left, grad));
  const Grid grid = grid_of(table, bits, granularity, threshold);
  const Chart blocks = chart_of(chart, grad.size(), codes.size() * 8 / size_t(bits));
  require(norms.size() == blocks.count && quality.size() == 4 * blocks.count && every >= 1,
          "there are one norm and four qualities for every block");
  nb::gil_scoped_release unlocked;
  chosen.kernels->thc_encode(gradient, old, norms.data(), blocks, grid, {shared, own}, every, codes.data(), rest,
                             reinterpret_cast<Quality*>(quality.data()));
}

void thc_combine(const Of<uint8_t>& messages, const Of<const int64_t>& table, int bits, int lane,
                 const Of<uint8_t>& reply) {
  require(table.size() > 0, "a table has 2^bits entries, of 2 to 8 bits");
  const Grid grid = grid_of(table, bits, int(table.data()[table.size() - 1]), 0);
  require(messages.ndim() == 2 && messages.shape(0) >= 1 && messages.shape(1) % size_t(bits) == 0,
          "messages are rows of whole groups of eight codes");
  const size_t width = messages.shape(1) * 8 / size_t(bits);
  require(lane >= 8 && lane <= 16 && reply.size() == width * size_t(lane) / 8 + kCountBytes,
          "a reply has the sums in lanes of 8 to 16 bits, and a count");
  require(messages.shape(0) * size_t(grid.granularity) < size_t(1) << lane, "the sums do not fit their lanes");
  nb::gil_scoped_release unlocked;
  chosen.kernels->thc_combine(messages.data(), messages.shape(0), messages.shape(1), grid, lane, reply.data());
}

// The number of contributors, which stands at the end of every reply.
uint32_t count_of(const Of<uint8_t>& replies) {
  const size_t bytes = replies.shape(1);
  const uint8_t* const first = replies.data() + bytes - kCountBytes;
  for (size_t row = 1; row < replies.shape(0); ++row)
    require(std::memcmp(first, first + row * bytes, kCountBytes) == 0,
            "the shards of a piece have different numbers of contributors");
  uint32_t count;
  std::memcpy(&count, first, kCountBytes);
  return count;
}

void thc_decode(const Of<uint8_t>& replies, const Of<float>& norms, const Of<const int64_t>& chart, int granularity,
                double threshold, uint32_t shared, int lane, const Array& grad) {
  const Gradient gradient = gradient_of(grad);
  require(replies.ndim() == 2 && replies.shape(0) >= 1 && replies.shape(1) > kCountBytes && lane >= 8 && lane <= 16 &&
              (replies.shape(1) - kCountBytes) % size_t(lane) == 0,
          "replies are rows of eight lanes each, of 8 to 16 bits, and a count");
  const size_t width = (replies.shape(1) - kCountBytes) / size_t(lane) * 8;
  const Chart blocks = chart_of(chart, grad.size(), width * replies.shape(0));
  const uint32_t count = count_of(replies);
  require(size_t(count) * size_t(granularity) < size_t(1) << lane, "the sums do not fit their lanes");
  require(norms.size() == blocks.count, "there is one norm for every block");
  nb::gil_scoped_release unlocked;
  chosen.kernels->thc_decode(replies.data(), replies.shape(1), int(count), norms.data(), blocks,
                             {nullptr, 0, granularity, threshold}, lane, shared, gradient);
}

Parts parts_of(const Of<const int64_t>& chart, size_t values, size_t votes) {
  require(chart.ndim() == 2 && chart.shape(1) == 3, "a chart has three columns");
  const Parts parts = {reinterpret_cast<const Part*>(chart.data()), chart.shape(0)};
  size_t stop = 0, all = 0;
  for (size_t k = 0; k < parts.count; ++k) {
    const Part& part = parts.parts[k];
    require(part.start >= 0 && part.numel >= 1 && size_t(part.start) >= stop && size_t(part.start) <= values &&
                size_t(part.numel) <= values - size_t(part.start),
            "parts lie one behind the other in the gradient");
    require(part.keep >= 1 && part.keep <= part.numel, "of a part at least one coordinate speaks, at most all");
    stop = size_t(part.start + part.numel);
    all += size_t(part.keep);
  }
  require(all <= votes && values < kLargest, "there is room for all votes");
  return parts;
}

int64_t sign_select(const Array& grad, const Optional& old, double memory, const Of<const int64_t>& chart,
                    const Optional& left, const Of<int32_t>& votes) {
  const Gradient gradient = gradient_of(grad);
  const float* remembered = residual_of(old, grad);
  float* rest = const_cast<float*>(residual_of(left, grad));
  const Parts parts = parts_of(chart, grad.size(), votes.size());
  nb::gil_scoped_release unlocked;
  return chosen.kernels->sign_select(gradient, remembered, float(memory), parts, rest, votes.data());
}

void sign_pack(const Of<const int32_t>& votes, size_t numel, size_t width, const Of<uint8_t>& messages,
               const Of<int64_t>& sizes) {
  require(messages.ndim() == 2 && messages.shape(1) >= room_for(width) && sizes.size() == messages.shape(0),
          "there is a row for every shard's message, and a size");
  require(numel < kLargest && width < kLargest && messages.shape(0) * width >= numel, "shards cover all coordinates");
  nb::gil_scoped_release unlocked;
  for (size_t j = 0; j < votes.size(); ++j)
    require(votes.data()[j] >= 0 && size_t(votes.data()[j]) < 2 * numel &&
                (j == 0 || votes.data()[j] >> 1 > votes.data()[j - 1] >> 1),
            "votes are in order, one a coordinate");
  chosen.kernels->sign_pack(votes.data(), votes.size(), numel, width, messages.shape(0), messages.data(),
                            messages.shape(1), sizes.data());
}

std::vector<Message> messages_of(const Bytes& arrays) {
  std::vector<Message> messages;
  for (const auto& array : arrays) messages.push_back({array.data(), array.size()});
  return messages;
}

size_t size_of(const Outcome& outcome) {
  static const char* const faults[] = {"",
                                       "is cut short",
                                       "is longer than it says",
                                       "has a damaged header",
                                       "is of no known form",
                                       "has a byte that is no five trits",
                                       "has a place beyond its coordinates"};
  if (outcome.fault == Fault::none) return outcome.size;
  const std::string sentence =
      "the message of worker " + std::to_string(outcome.worker) + " " + faults[int(outcome.fault)];
  throw nb::value_error(sentence.c_str());
}

Coins coins_of(const Of<const int64_t>& rows) {
  require(rows.ndim() == 2 && rows.shape(0) >= 1 && rows.shape(1) == 3, "coins have three columns");
  const Coins coins = {reinterpret_cast<const Coin*>(rows.data()), rows.shape(0)};
  for (size_t k = 0; k < coins.count; ++k)
    require(coins.coins[k].offset >= 0 && (k ? coins.coins[k].start > coins.coins[k - 1].start : !coins.coins[k].start),
            "coins start at 0, and then one behind the other");
  return coins;
}

size_t sign_combine(const Bytes& arrays, const Of<const int64_t>& weights, size_t numel,
                    const std::optional<Of<const int64_t>>& coins, const Of<uint8_t>& reply, const Of<int64_t>& counts) {
  const std::vector<Message> messages = messages_of(arrays);
  require(weights.size() == messages.size() && messages.size() <= kMostVoters, "every message has a weight");
  for (size_t k = 0; k < weights.size(); ++k)
    require(std::abs(weights.data()[k]) <= kHeaviest, "a weight is an integer from -511 to 511");
  require(numel < kLargest && reply.size() >= room_for(numel), "a reply has room for all coordinates");
  require(counts.size() == 4 + 2 * messages.size(), "there are four counts, and two for every message");
  const Coins tossed = coins ? coins_of(*coins) : Coins{nullptr, 0};
  Outcome outcome;
  {
    nb::gil_scoped_release unlocked;
    outcome = chosen.kernels->sign_combine({messages.data(), messages.size()}, weights.data(), numel,
                                           tossed, reply.data(),
                                           reinterpret_cast<Counts*>(counts.data()),
                                           reinterpret_cast<Met*>(counts.data() + 4));
  }
  return size_of(outcome);
}

void sign_decode(const Bytes& arrays, size_t width, const Array& grad) {
  const Gradient gradient = gradient_of(grad);
  const std::vector<Message> replies = messages_of(arrays);
  require(grad.size() < kLargest && width < kLargest && replies.size() * width >= grad.size(),
          "replies cover all coordinates");
  Outcome outcome;
  {
    nb::gil_scoped_release unlocked;
    outcome = chosen.kernels->sign_decode({replies.data(), replies.size()}, width, gradient, grad.size());
  }
  size_of(outcome);
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const auto& set : available()) names.push_back(set.name);
  return names;
}

}  // namespace

NB_MODULE(_native, module) {
  module.def("average", &average, nb::arg("messages"), nb::arg("out").noconvert());
  module.def("all_finite", &all_finite, nb::arg("values"));
  module.def("product", &product, nb::arg("deltas"), nb::arg("inputs"), nb::arg("out").noconvert());
  module.def("thc_norms", &thc_norms, nb::arg("grad"), nb::arg("residual").none(), nb::arg("chart"),
             nb::arg("norms").noconvert());
  module.def("thc_encode", &thc_encode, nb::arg("grad"), nb::arg("residual").none(), nb::arg("norms"),
             nb::arg("chart"), nb::arg("table"), nb::arg("granularity"), nb::arg("threshold"), nb::arg("shared"),
             nb::arg("own"), nb::arg("bits"), nb::arg("every"), nb::arg("codes").noconvert(), nb::arg("new").none().noconvert(),
             nb::arg("quality").noconvert());
  module.def("thc_combine", &thc_combine, nb::arg("messages"), nb::arg("table"), nb::arg("bits"), nb::arg("lane"),
             nb::arg("reply").noconvert());
  module.def("thc_decode", &thc_decode, nb::arg("replies"), nb::arg("norms"), nb::arg("chart"),
             nb::arg("granularity"), nb::arg("threshold"), nb::arg("shared"), nb::arg("lane"),
             nb::arg("grad").noconvert());
  module.def("sign_select", &sign_select, nb::arg("grad"), nb::arg("old").none(), nb::arg("memory"), nb::arg("chart"),
             nb::arg("new").none().noconvert(), nb::arg("votes").noconvert());
  module.def("sign_pack", &sign_pack, nb::arg("votes"), nb::arg("numel"), nb::arg("width"),
             nb::arg("messages").noconvert(), nb::arg("sizes").noconvert());
  module.def("sign_combine", &sign_combine, nb::arg("messages"), nb::arg("weights"), nb::arg("numel"),
             nb::arg("coins").none(), nb::arg("reply").noconvert(), nb::arg("counts").noconvert());
  module.def("sign_decode", &sign_decode, nb::arg("replies"), nb::arg("width"), nb::arg("grad").noconvert());
  add_coding(module);
  add_packing(module);
  module.def("instruction_sets", &instruction_sets);
  module.def("chosen", [] { return chosen.name; });
  module.def("choose", &choose, nb::arg("name"));
}
