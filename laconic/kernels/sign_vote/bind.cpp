// Python's door to SignVote's ops.
#include <cstdlib>

#include "native/bind.h"

namespace laconic {
namespace {

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
  damaged(size_t(outcome.worker), faults[int(outcome.fault)]);
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

}  // namespace

void bind_sign_vote(nb::module_& module) {
#define LACONIC_OP LACONIC_BIND_OP
#include "sign_vote/ops.inc"
#undef LACONIC_OP
}

}  // namespace laconic
