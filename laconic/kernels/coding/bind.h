// What sealed messages take from Python, whoever seals them.
#pragma once
#include <string>
#include <vector>

#include "coding/cpu.h"
#include "native/arrays.h"

namespace laconic {

std::vector<AnsBook> books_of(const Of<const int32_t>& books);
Sealing sealing_of(size_t width, size_t offset, size_t room);
// What is wrong with a message.
const char* said(CodeFault fault);
// A fault is a ValueError, about the message so called.
void refuse(CodeFault fault, const std::string& message);

}  // namespace laconic
