// Python's door to the lossless stage and GenNorm's kernels.
#include "arrays.h"

namespace laconic {
namespace {

const char* const kFaults[] = {"",
                               "is cut short",
                               "is longer than it says",
                               "ends within a word",
                               "does not end as it began",
                               "has a symbol that there is not",
                               "is of no known kind",
                               "has no room"};

std::vector<AnsBook> books_of(const Of<const int32_t>& books) {
  require(books.ndim() == 3 && books.shape(1) == 2 && books.shape(2) == kSymbols,
          "a book has 256 shares and where they start");
  std::vector<AnsBook> all;
  for (size_t k = 0; k < books.shape(0); ++k) {
    const AnsBook book = {books.data() + 2 * k * kSymbols, books.data() + (2 * k + 1) * kSymbols};
    int64_t whole = 0;
    for (size_t s = 0; s < kSymbols; ++s) {
      require(book.shares[s] >= 0 && book.starts[s] >= 0 && int64_t(book.shares[s]) + book.starts[s] <= 2048,
              "a share lies outside 2048 parts");
      whole += book.shares[s];
    }
    require(whole == 2048, "shares add up to 2048");
    all.push_back(book);
  }
  return all;
}

AnsParts ans_parts_of(const Of<const int64_t>& rows, const std::vector<AnsBook>& books, size_t symbols) {
  require(rows.ndim() == 2 && rows.shape(1) == 2, "a part has a number of symbols and a book");
  const AnsParts parts = {reinterpret_cast<const AnsPart*>(rows.data()), rows.shape(0), books.data()};
  size_t count = 0;
  for (size_t k = 0; k < parts.count; ++k) {
    const AnsPart& part = parts.parts[k];
    require(part.count >= 0 && size_t(part.count) <= symbols - count && part.book >= 0 &&
                size_t(part.book) < books.size(),
            "a part lies outside the symbols, or has no book");
    count += size_t(part.count);
  }
  require(count == symbols, "parts have all symbols");
  return parts;
}

void refuse(CodeFault fault, const std::string& message) {
  if (fault == CodeFault::none) return;
  const std::string sentence = message + " " + kFaults[int(fault)];
  throw nb::value_error(sentence.c_str());
}

Sealing sealing_of(size_t width, size_t offset, size_t room) {
  require(width == 4 || width == 8, "symbols have 4 or 8 bits");
  require(offset >= kHeadBytes, "a header begins behind the checksum and the kind");
  return {offset, width, room};
}

size_t seal(const Of<const uint8_t>& symbols, const Of<const int64_t>& rows, const Of<const int32_t>& books,
            size_t width, size_t offset, const Of<uint8_t>& message) {
  const std::vector<AnsBook> all = books_of(books);
  const AnsParts parts = ans_parts_of(rows, all, symbols.size());
  const Sealing sealing = sealing_of(width, offset, message.size());
  require(message.size() >= offset + raw_bytes(symbols.size(), width) + kSpare, "a message has room for all symbols");
  CodeOutcome outcome;
  {
    nb::gil_scoped_release unlocked;
    outcome = chosen.kernels->seal(symbols.data(), parts, sealing, message.data());
  }
  refuse(outcome.fault, "what is sealed");
  return outcome.size;
}

void unseal(const Of<const uint8_t>& message, const Of<const int64_t>& rows, const Of<const int32_t>& books,
            size_t width, size_t offset, const Of<uint8_t>& symbols) {
  const std::vector<AnsBook> all = books_of(books);
  const AnsParts parts = ans_parts_of(rows, all, symbols.size());
  const Sealing sealing = sealing_of(width, offset, message.size());
  CodeFault fault;
  {
    nb::gil_scoped_release unlocked;
    fault = chosen.kernels->unseal(message.data(), parts, sealing, symbols.data());
  }
  refuse(fault, "the message");
}

int64_t checksum(const Of<const uint8_t>& content) {
  nb::gil_scoped_release unlocked;
  return int64_t(chosen.kernels->checksum(content.data(), content.size()));
}

Minifloat minifloat_of(const std::string& name) {
  if (name == "e5m2") return kE5m2;
  if (name == "e4m3") return kE4m3;
  require(name == "fp4", "a format is e5m2, e4m3 or fp4");
  return kFp4;
}

template <class Part> const Part* parts_of(const int64_t* rows, size_t count, size_t values) {
  const Part* const parts = reinterpret_cast<const Part*>(rows);
  for (size_t k = 0; k < count; ++k)
    require(parts[k].start >= 0 && parts[k].count >= 0 && size_t(parts[k].start) <= values &&
                size_t(parts[k].count) <= values - size_t(parts[k].start),
            "a part lies outside its gradient");
  return parts;
}

const LevelSpan* spans_of(const Of<const int64_t>& rows, size_t values) {
  require(rows.ndim() == 2 && rows.shape(1) == 2, "a part has a start and a number of coordinates");
  return parts_of<LevelSpan>(rows.data(), rows.shape(0), values);
}

void gennorm_moments(const Array& grad, const Optional& old, double memory, const Of<const int64_t>& rows,
                     const Of<double>& moments) {
  const Gradient gradient = gradient_of(grad);
  const Residual residual = {residual_of(old, grad), float(memory), nullptr};
  const LevelSpan* const parts = spans_of(rows, grad.size());
  require(moments.size() == 2 * rows.shape(0), "a part has two moments");
  nb::gil_scoped_release unlocked;
  chosen.kernels->gennorm_moments(gradient, residual, parts, rows.shape(0),
                                  reinterpret_cast<Moments*>(moments.data()));
}

bool gennorm_quantize(const Array& grad, const Optional& old, double memory, const Of<const int64_t>& rows,
                      const Of<const float>& scales, const std::string& format, const Optional& left,
                      const Of<uint8_t>& symbols, const Of<int32_t>& counts) {
  const Gradient gradient = gradient_of(grad);
  const Residual residual = {residual_of(old, grad), float(memory), const_cast<float*>(residual_of(left, grad))};
  const Minifloat minifloat = minifloat_of(format);
  const LevelSpan* const parts = spans_of(rows, grad.size());
  const size_t count = rows.shape(0);
  require(scales.size() == 2 * count && counts.size() == kSymbols * count,
          "a part has a scale, its inverse, and 256 counts");
  size_t spoken = 0;
  for (size_t k = 0; k < count; ++k) spoken += scales.data()[2 * k] > 0 ? size_t(parts[k].count) : 0;
  require(symbols.size() >= spoken, "there is room for all symbols");
  nb::gil_scoped_release unlocked;
  return chosen.kernels->gennorm_quantize(gradient, residual, parts, count,
                                          reinterpret_cast<const LevelScale*>(scales.data()), minifloat,
                                          symbols.data(), reinterpret_cast<LevelCounts*>(counts.data()));
}

void gennorm_average(const Bytes& messages, size_t offset, const Of<const int64_t>& rows,
                     const Of<const float>& inverses, const Of<const int32_t>& books, const std::string& format,
                     const Array& out) {
  const Gradient gradient = gradient_of(out);
  const Minifloat minifloat = minifloat_of(format);
  const std::vector<AnsBook> all = books_of(books);
  require(rows.ndim() == 3 && rows.shape(0) == messages.size() && rows.shape(2) == 3 && !messages.empty(),
          "every message has parts of three columns");
  const size_t count = rows.shape(1);
  require(inverses.size() == messages.size() * count, "every part has an inverse scale");
  std::vector<Leveled> leveled;
  for (size_t k = 0; k < messages.size(); ++k) {
    const LevelPart* const own = parts_of<LevelPart>(rows.data() + 3 * k * count, count, out.size());
    for (size_t p = 0; p < count; ++p) {
      require(own[p].start == rows.data()[3 * p] && own[p].count == rows.data()[3 * p + 1],
              "all messages are about the same parts");
      require(own[p].book < int64_t(all.size()), "a part has a book, or -1");
    }
    const Sealing sealing = sealing_of(size_t(minifloat.bits()), offset, messages[k].size());
    leveled.push_back({messages[k].data(), sealing, own, inverses.data() + k * count});
  }
  LevelFault fault;
  {
    nb::gil_scoped_release unlocked;
    fault = chosen.kernels->gennorm_average(leveled.data(), leveled.size(), count, all.data(), minifloat, gradient);
  }
  refuse(fault.fault, "the message of worker " + std::to_string(fault.message));
}

}  // namespace

void add_coding(nb::module_& module) {
  module.def("seal", &seal, nb::arg("symbols"), nb::arg("parts"), nb::arg("books"), nb::arg("width"),
             nb::arg("offset"), nb::arg("message").noconvert());
  module.def("unseal", &unseal, nb::arg("message"), nb::arg("parts"), nb::arg("books"), nb::arg("width"),
             nb::arg("offset"), nb::arg("symbols").noconvert());
  module.def("checksum", &checksum, nb::arg("content"));
  module.def("gennorm_moments", &gennorm_moments, nb::arg("grad"), nb::arg("old").none(), nb::arg("memory"),
             nb::arg("parts"), nb::arg("moments").noconvert());
  module.def("gennorm_quantize", &gennorm_quantize, nb::arg("grad"), nb::arg("old").none(), nb::arg("memory"),
             nb::arg("parts"), nb::arg("scales"), nb::arg("format"), nb::arg("new").none().noconvert(),
             nb::arg("symbols").noconvert(), nb::arg("counts").noconvert());
  module.def("gennorm_average", &gennorm_average, nb::arg("messages"), nb::arg("offset"), nb::arg("parts"),
             nb::arg("inverses"), nb::arg("books"), nb::arg("format"), nb::arg("out").noconvert());
}

}  // namespace laconic
