// Messages of SignVote: voted on together, and read as replies. The majority is as counted one by one.
//
//   numel      two bytes
//   coins      one byte: 0 if ties are zeros
//   messages   one byte: how many; of each: two bytes its weight, two its size, and itself
#include "input.h"

namespace laconic { namespace fuzz {
namespace {

constexpr size_t kMost = 20000;  // coordinates: a vote is on 7680 at a time

struct Voter {
  int64_t weight;
  Bytes message;
};

struct Read {
  Fault fault;
  size_t worker;
  Buffer<float> values;

  bool operator==(const Read& other) const {
    return fault == other.fault && worker == other.worker && (fault != Fault::none || values == other.values);
  }
};

struct Vote {
  Fault fault;
  size_t worker;
  Bytes reply;
  Buffer<int64_t> counts;

  bool operator==(const Vote& other) const {
    return fault == other.fault && worker == other.worker &&
           (fault != Fault::none || (reply == other.reply && counts == other.counts));
  }
};

std::vector<Message> messages_of(const std::vector<Voter>& voters) {
  std::vector<Message> messages;
  for (const Voter& voter : voters) messages.push_back({voter.message.data(), voter.message.size()});
  return messages;
}

// Messages about `width` coordinates each, one behind the other.
Read read(const std::vector<Message>& messages, size_t width) {
  return alike([&](const Kernels& kernels) {
    Buffer<float> values(width * messages.size());
    const Outcome outcome =
        kernels.sign_decode({messages.data(), messages.size()}, width, {values.data(), Format::fp32}, values.size());
    return Read{outcome.fault, outcome.worker, std::move(values)};
  });
}
Read read(const Message& message, size_t width) { return read(std::vector<Message>{message}, width); }

Vote vote(const std::vector<Voter>& voters, size_t numel, Coins coins) {
  const std::vector<Message> messages = messages_of(voters);
  std::vector<int64_t> weights;
  for (const Voter& voter : voters) weights.push_back(voter.weight);
  return alike([&](const Kernels& kernels) {
    const Bytes room(room_for(numel));
    Buffer<int64_t> counts(4 + 2 * voters.size());
    const Outcome outcome = kernels.sign_combine(
        {messages.data(), messages.size()}, weights.data(), numel, coins, room.data(),
        reinterpret_cast<Counts*>(counts.data()), reinterpret_cast<Met*>(counts.data() + 4));
    const bool none = outcome.fault == Fault::none;
    return Vote{outcome.fault, outcome.worker, room.begun(none ? outcome.size : 0), std::move(counts)};
  });
}

bool lost(const Read& found) {
  return found.values.size() && found.values[0] != found.values[0];
}

// The reply says what most votes do; ties are what coins say, if anything.
void count(const std::vector<Voter>& voters, const std::vector<Read>& ballots, const Read& reply, bool coins) {
  for (size_t i = 0; i < reply.values.size(); ++i) {
    float sum = 0;
    bool spoken = false;
    for (size_t k = 0; k < voters.size(); ++k) {
      sum += float(voters[k].weight) * ballots[k].values[i];
      spoken = spoken || ballots[k].values[i] != 0;
    }
    const float majority = sum > 0 ? 1 : sum < 0 ? -1 : 0, said = reply.values[i];
    const bool tossed = coins && spoken && majority == 0;
    demand(tossed ? said == 1 || said == -1 : said == majority, "a reply is the majority");
  }
}

}  // namespace
}}  // namespace laconic::fuzz

using namespace laconic;
using namespace laconic::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  Input input(bytes, size);
  const size_t numel = input.number(2) % (kMost + 1);
  const Coin coin = {0, int64_t(input.number(1)), 77};
  const Coins coins = {&coin, size_t(coin.offset > 0)};
  std::vector<Voter> voters;
  for (size_t k = 1 + input.number(1) % 4; k--;) {
    const int64_t weight = int64_t(input.number(2) % (2 * kHeaviest + 1)) - kHeaviest;
    const size_t told = input.number(2);
    voters.push_back({weight, k ? input.take(told) : input.rest()});
  }
  const std::vector<Message> messages = messages_of(voters);
  std::vector<Read> ballots;
  for (const Message& message : messages) ballots.push_back(read(message, numel));
  const bool sound = std::all_of(ballots.begin(), ballots.end(), [](const Read& r) { return r.fault == Fault::none; });
  const Vote outcome = vote(voters, numel, coins);
  demand(sound == (outcome.fault == Fault::none), "a vote is refused as its messages are");
  demand(sound || ballots[outcome.worker].fault == outcome.fault, "the right worker is blamed");
  const Read together = read(messages, numel);
  demand(sound == (together.fault == Fault::none), "replies are refused together as alone");
  if (!sound) return 0;
  const Read reply = read({outcome.reply.data(), outcome.reply.size()}, numel);
  demand(reply.fault == Fault::none, "a reply is understood");
  const bool any_lost = std::any_of(ballots.begin(), ballots.end(), lost);
  demand(!numel || any_lost == lost(reply), "one lost message makes the reply a lost one");
  if (!any_lost) count(voters, ballots, reply, coins.count);
  return 0;
}
