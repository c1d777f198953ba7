// THC's kernels of one instruction set.
#pragma once
#include "thc.h"

namespace laconic { namespace LACONIC_ISA {

void thc_norms(const Gradient& grad, const float* residual, Chart chart, float* norms);
void thc_encode(const Gradient& grad, const float* residual, const float* norms, Chart chart, const Grid& grid,
                Keys keys, Sample sample, uint8_t* codes, float* left, Quality* quality);
void thc_combine(const uint8_t* messages, size_t workers, size_t bytes, const Grid& grid, int lane, uint8_t* reply);
void thc_decode(const uint8_t* replies, size_t bytes, int count, const float* norms, Chart chart, const Grid& grid,
                int lane, uint32_t key, const Gradient& grad);

}}  // namespace laconic::LACONIC_ISA
