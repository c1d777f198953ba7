// A gradient in one of the formats that Laconic carries.
#pragma once

namespace laconic {

enum class Format { fp32, bf16, fp16 };

struct Gradient {
  void* values;
  Format format;
};

}  // namespace laconic
