// Damaged messages of SignVote under the address and undefined-behavior sanitizers: millions in a minute.
//
//   g++ -std=c++17 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover -DLACONIC_ISA=portable
//       -Ilaconic/kernels tests/fuzz/sign_vote.cpp laconic/kernels/sign_vote/cpu_vote.cpp -o fuzz
//   ./fuzz 1000000
//
// Add -mavx2 -mfma -mf16c -mbmi2 or the AVX-512 options of CMakeLists.txt for the other instruction sets. Every
// buffer has just the size it needs, so that a byte read or written beyond one ends the program.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "native/instruction_set.h"

using namespace laconic;
using namespace laconic::LACONIC_ISA;
using Bytes = std::vector<uint8_t>;

static std::mt19937_64 source(1);
static size_t below(size_t limit) { return limit ? source() % limit : 0; }

static Bytes sound(size_t numel) {
  const double density = std::pow(10.0, -2.5 * double(below(1000)) / 1000);
  std::vector<int32_t> votes;
  for (size_t i = 0; i < numel; ++i)
    if (double(below(1 << 20)) < density * (1 << 20)) votes.push_back(int32_t(2 * i + below(2)));
  Bytes message(room_for(numel));
  int64_t size;
  sign_pack(votes.data(), votes.size(), numel, numel, 1, message.data(), message.size(), &size);
  return Bytes(message.begin(), message.begin() + size);
}

static Bytes damaged(Bytes message) {
  for (size_t change = 1 + below(3); change--;) {
    const size_t place = below(message.size()), kind = below(4);
    if (kind == 0 && !message.empty()) message[place] = uint8_t(below(256));
    if (kind == 1 && !message.empty()) message[place] ^= uint8_t(1 << below(8));
    if (kind == 2) message.resize(place);
    if (kind == 3)
      for (size_t more = below(9); more--;) message.push_back(uint8_t(below(256)));
  }
  return Bytes(message.begin(), message.end());  // a vector of just this size
}

int main(int, char** arguments) {
  size_t refused = 0, understood = 0;
  for (long left = std::atol(arguments[1]); left--;) {
    const size_t numel = below(left % 100 ? 400 : 20000);
    const Bytes bytes[2] = {sound(numel), damaged(sound(numel))};
    const Message messages[2] = {{bytes[0].data(), bytes[0].size()}, {bytes[1].data(), bytes[1].size()}};
    const int64_t weights[2] = {1, int64_t(below(1023)) - 511};
    const Coin coins[1] = {{0, int64_t(below(1000)), 77}};
    Bytes reply(room_for(numel));
    Counts counts;
    Met met[2];
    const Outcome vote =
        sign_combine({messages, 2}, weights, numel, {coins, below(2)}, reply.data(), &counts, met);
    std::vector<float> grad(numel);
    const Outcome read = sign_decode({messages + 1, 1}, numel, {grad.data(), Format::fp32}, numel);
    if ((vote.fault == Fault::none) != (read.fault == Fault::none) || (vote.fault != Fault::none && vote.worker != 1))
      std::abort();
    (vote.fault == Fault::none ? understood : refused) += 1;
  }
  std::printf("%zu understood, %zu refused, none harmful\n", understood, refused);
}
