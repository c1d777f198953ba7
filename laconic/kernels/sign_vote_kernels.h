// SignVote's kernels of one instruction set.
#pragma once
#include "sign_vote.h"

namespace laconic { namespace LACONIC_ISA {

SignSelect sign_select;
SignPack sign_pack;
SignCombine sign_combine;
SignDecode sign_decode;

}}  // namespace laconic::LACONIC_ISA
