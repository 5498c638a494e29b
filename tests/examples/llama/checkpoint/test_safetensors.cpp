#include "examples/llama/checkpoint/error.hpp"
#include "examples/llama/checkpoint/safetensors.hpp"
#include "support.hpp"

namespace llama {
namespace {

using namespace testing;

void rejects_safetensors(const std::string& file, std::initializer_list<std::string_view> parts) {
  check_rejected<checkpoint_error>([&] { read_safetensors(bytes_of(file), "weights"); }, parts);
  check_rejected<checkpoint_error>([&] { read_safetensors(bytes_of(file), "weights"); }, {"weights"});
}

TEST_CASE("a good header gives every tensor's type, shape and bytes") {
  const std::string file = safetensors(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},)"
      R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"s":{"dtype":"I64","shape":[],"data_offsets":[14,22]},)"
      R"("z":{"dtype":"F16","shape":[0,4],"data_offsets":[8,8]}}   )",
      "aaaaaaaabbbbbbssssssss");
  const StoredTensors tensors = read_safetensors(bytes_of(file), "weights");
  REQUIRE(tensors.size() == 4);
  const auto check = [&](std::string_view name, std::string_view dtype, std::vector<Index> shape,
                         std::string_view data) {
    const StoredTensor& tensor = tensors.find(name)->second;
    CHECK(tensor.dtype == dtype);
    CHECK(tensor.shape == shape);
    REQUIRE(tensor.data.size() == data.size());
    CHECK(std::memcmp(tensor.data.data(), data.data(), data.size()) == 0);
  };
  check("a", "F32", {1, 2}, "aaaaaaaa");
  check("b", "BF16", {3}, "bbbbbb");
  check("s", "I64", {}, "ssssssss");
  check("z", "F16", {0, 4}, "");
}

TEST_CASE("element types that are not known are left for the one who asks for them") {
  const std::string file = safetensors(R"({"n":{"dtype":"F3_NEW","shape":[7],"data_offsets":[0,5]}})", "12345");
  CHECK(read_safetensors(bytes_of(file), "weights").at("n").dtype == "F3_NEW");
  CHECK(read_safetensors(bytes_of(safetensors("{}", "")), "weights").empty());
}

TEST_CASE("a header length that cannot be is refused before anything is read") {
  rejects_safetensors("short", {"5 bytes", "at least 8"});
  rejects_safetensors(raw<std::uint64_t>({100'000'001}) + "{}", {"100000001", "allowed are 100000000"});
  rejects_safetensors(raw<std::uint64_t>({100'000'000}) + "{}", {"100000000", "only 2 follow"});
  rejects_safetensors(raw<std::uint64_t>({~std::uint64_t{0}}) + "{}", {"18446744073709551615", "allowed are"});
}

TEST_CASE("a pointer of Git LFS in place of the weights is called so") {
  rejects_safetensors("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", {"Git LFS pointer"});
}

TEST_CASE("a header that is not one JSON object is refused") {
  for (const char* header : {"", "[]", "3", " {}", "\xEF\xBB\xBF{}"})
    rejects_safetensors(safetensors(header, ""), {"not a JSON object"});
  for (const char* header : {"{", "{}{}", "{\"a\":}", "{\"\xFF\":1}"})
    rejects_safetensors(safetensors(header, ""), {"not valid JSON"});
  rejects_safetensors(safetensors("{\"a\":1e999}", ""), {"not valid JSON"});
  for (const char* behind : {"", "x", "{}"}) {
    const std::string header = std::string("{\n}") + '\0' + behind;
    rejects_safetensors(safetensors(header, ""), {"not valid JSON: a zero byte at line 2, column 2"});
  }
  rejects_safetensors(
      safetensors(std::string(100'000, ' ').replace(0, 5, "{\"a\":").replace(5, 90'000, 90'000, '['), ""),
      {"nested deeper than 16"});
}

TEST_CASE("JSON that would take much memory is refused") {
  std::string values = "{\"a\":[0";
  for (int i = 0; i < 1'000'000; ++i) values += ",0";
  rejects_safetensors(safetensors(values + "]}", ""), {"more than 1000000 values"});
  const std::string spaces(100'000'001, ' ');
  check_rejected<checkpoint_error>([&] { read_safetensors_index(bytes_of(spaces), "index"); },
                                   {"index", "100000001 bytes", "allowed are 100000000"});
}

TEST_CASE("a name given twice is refused, at any depth") {
  const std::string entry = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  rejects_safetensors(safetensors("{\"a\":" + entry + ",\"a\":" + entry + "}", "1234"), {"\"a\" appears twice"});
  rejects_safetensors(safetensors("{\"a\":" + entry + ",\"\\u0061\":" + entry + "}", "1234"), {"\"a\" appears twice"});
  rejects_safetensors(safetensors(R"({"a":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,4]}})", "1234"),
                      {"\"dtype\" appears twice"});
  const std::string same_inside = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  CHECK(read_safetensors(bytes_of(safetensors(same_inside, "12345678")), "weights").size() == 2);
}

TEST_CASE("entries with missing or wrong fields are refused") {
  const auto entry_rejects = [](const std::string& entry, std::initializer_list<std::string_view> parts) {
    rejects_safetensors(safetensors("{\"t\":" + entry + "}", "1234"), parts);
  };
  entry_rejects("7", {"tensor \"t\"", "expected an object"});
  entry_rejects(R"({"shape":[1],"data_offsets":[0,4]})", {"tensor \"t\"", "\"dtype\" is missing"});
  entry_rejects(R"({"dtype":"F32","data_offsets":[0,4]})", {"\"shape\" is missing"});
  entry_rejects(R"({"dtype":"F32","shape":[1]})", {"\"data_offsets\" is missing"});
  entry_rejects(R"({"dtype":5,"shape":[1],"data_offsets":[0,4]})", {"\"dtype\" is 5"});
  for (const char* shape : {"1", "{}", "{\"a\":1}", "null", "[-1]", "[1.0]", "[\"1\"]", "[18446744073709551615]",
                            "[99999999999999999999999]"}) {
    CAPTURE(shape);
    entry_rejects(std::string(R"({"dtype":"F32","shape":)") + shape + R"(,"data_offsets":[0,4]})",
                  {"\"shape\" is ", "expected a list of sizes"});
  }
  for (const char* offsets : {"4", "[4]", "[0,4,8]", "[-4,0]", "[0,4.0]", "[0,null]"})
    entry_rejects(std::string(R"({"dtype":"F32","shape":[1],"data_offsets":)") + offsets + "}",
                  {"\"data_offsets\" is ", "expected two offsets"});
  rejects_safetensors(safetensors(R"({"__metadata__":{"a":1}})", ""), {"__metadata__", "object of strings"});
}

TEST_CASE("offsets must lie in the file and agree with the shape") {
  const auto one = [](const std::string& shape, const std::string& offsets, const char* dtype = "F32") {
    return safetensors(
        std::string(R"({"t":{"dtype":")") + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}",
        "12345678");
  };
  rejects_safetensors(one("[2]", "[4,12]"), {"[4, 12]", "0 to 8"});
  rejects_safetensors(one("[2]", "[8,0]"), {"[8, 0]", "ascending"});
  rejects_safetensors(one("[2]", "[0,18446744073709551615]"), {"18446744073709551615"});
  rejects_safetensors(one("[2]", "[18446744073709551608,0]"), {"18446744073709551608"});
  rejects_safetensors(one("[3]", "[0,8]"), {"needs 96 bits", "8 bytes"});
  rejects_safetensors(one("[2]", "[0,8]", "F16"), {"needs 32 bits"});
  rejects_safetensors(one("[1]", "[0,8]", "F4"), {"needs 4 bits"});
  rejects_safetensors(one("[17]", "[0,8]", "F4"), {"needs 68 bits"});
  rejects_safetensors(one("[4294967296,4294967296,2]", "[0,8]"), {"overflows"});
  rejects_safetensors(one("[9223372036854775807,2]", "[0,8]"), {"overflows"});
  rejects_safetensors(one("[4611686018427387904,4,2]", "[0,8]"), {"overflows"});
  CHECK_NOTHROW(read_safetensors(bytes_of(one("[2]", "[0,8]")), "weights"));
}

TEST_CASE("tensors may neither overlap nor leave bytes unused") {
  const auto two = [](const std::string& a, const std::string& b, const char* payload) {
    return safetensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
                           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}",
                       payload);
  };
  CHECK_NOTHROW(read_safetensors(bytes_of(two("[4,8]", "[0,4]", "12345678")), "weights"));
  rejects_safetensors(two("[0,4]", "[3,7]", "1234567"), {"tensor \"b\" overlaps", "offset 3"});
  rejects_safetensors(two("[0,4]", "[0,4]", "1234"), {"tensor \"b\" overlaps"});
  rejects_safetensors(two("[0,4]", "[5,9]", "123456789"), {"hole before tensor \"b\"", "offset 5"});
  rejects_safetensors(two("[1,5]", "[5,9]", "123456789"), {"hole before tensor \"a\"", "offset 1"});
  rejects_safetensors(two("[0,4]", "[4,8]", "123456789"), {"end at offset 8", "9 bytes"});
}

TEST_CASE("an error message never repeats a huge or unprintable text") {
  const std::string name = "\\u001b[31m" + std::string(100'000, 'n');
  const std::string file = safetensors("{\"" + name + "\":7}", "");
  try {
    read_safetensors(bytes_of(file), "weights");
    FAIL_CHECK("nothing was thrown");
  } catch (const checkpoint_error& error) {
    CHECK(std::string_view(error.what()).size() < 400);
    CHECK(std::string_view(error.what()).find('\x1b') == std::string_view::npos);
  }
}

TEST_CASE("an index names plain files only") {
  const auto read = [](const std::string& text) { return read_safetensors_index(bytes_of(text), "index"); };
  const auto files = read(R"({"metadata":{},"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors"}})");
  CHECK(files == std::map<std::string, std::string>{{"a", "x-1.safetensors"}, {"b", "x-2.safetensors"}});
  for (const char* file :
       {R"("../x.safetensors")", R"("/etc/x.safetensors")", R"("a/x.safetensors")", R"("..")", R"("a\\x.safetensors")",
        R"("a\u0000.safetensors")", R"("config.json")", R"(".safetensors")", R"("")", "7", "null"})
    check_rejected<checkpoint_error>([&] { read(std::string(R"({"weight_map":{"t":)") + file + "}}"); },
                                     {"index", "tensor \"t\"", "plain file name"});
  for (const char* text : {"[]", "{}", R"({"weight_map":[]})", "3"})
    check_rejected<checkpoint_error>([&] { read(text); }, {"index", "weight_map"});
}

}  // namespace
}  // namespace llama
