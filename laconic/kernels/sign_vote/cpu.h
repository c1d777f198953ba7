// What SignVote's kernels take; sign_vote/__init__.py is their specification, numerics/ternary.py that of messages.
#pragma once
#include <cstddef>
#include <cstdint>

#include "native/formats.h"

namespace laconic {

// Coordinates that are chosen together.
struct Part {
  int64_t start, numel, keep;
};

struct Parts {
  const Part* parts;
  size_t count;
};

struct Message {
  const uint8_t* bytes;
  size_t size;
};

struct Messages {
  const Message* messages;
  size_t count;
};

// What can be wrong with a message.
enum class Fault { none, cut_short, longer, header, form, trits, beyond };

// The size of a reply, or whose message has which fault.
struct Outcome {
  size_t size;
  Fault fault;
  size_t worker;
};

// What ties become from coordinate `start` on: the signs of the stream `key` from number `offset` on.
struct Coin {
  int64_t start, offset, key;
};

// One behind the other, the first one's start 0; none where ties are zeros.
struct Coins {
  const Coin* coins;
  size_t count;
};

struct Counts {
  int64_t votes, spoken, tied, decided;
};

// Of one worker's votes: those that met others which did not cancel out, and those that these were against.
struct Met {
  int64_t others, against;
};

constexpr size_t kHeader = 5;
constexpr size_t kLargest = size_t(1) << 30;  // so that twice a place fits into an int32
constexpr size_t kMostVoters = 1023;          // so that votes and their sum fit into one
constexpr int64_t kHeaviest = 511;

// The bytes that a message takes at most.
inline size_t room_for(size_t numel) { return kHeader + (numel + 4) / 5; }

}  // namespace laconic
