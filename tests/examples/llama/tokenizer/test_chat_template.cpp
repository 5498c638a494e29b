#include "examples/llama/tokenizer/chat_template.hpp"

#include <doctest/doctest.h>
#include <fmt/chrono.h>

#include "support.hpp"
#include "tests/support/source_folder.hpp"

namespace llama::test {
namespace {

using nlohmann::json;

/// The file that tests/reference/make_chat_fixtures.py writes.
json chat_cases() {
  return json::parse(read(lazyllm::test::source_folder() / "tests/reference/fixtures/chat/cases.json"));
}

/// A folder with the tokenizer and the configuration of a case.
struct ChatFolder : TemporaryFolder {
  explicit ChatFolder(const json& chat_case) {
    write("tokenizer.json", read(fixture(chat_case["tokenizer"].get<std::string>() + ".json")));
    config = {{"bos_token", chat_case["bos_token"]},
              {"eos_token", chat_case["eos_token"]},
              {"chat_template", chat_case["chat_template"]}};
    write_config();
  }
  void write_config() const { write("tokenizer_config.json", config.dump()); }

  json config;
};

std::string chat_error(const ChatFolder& folder) {
  try {
    open_chat_template(folder.path());
  } catch (const tokenizer_error& error) {
    return error.what();
  }
  return {};
}

TEST_CASE("a prompt in a model's chat template has the text and the ids of transformers' apply_chat_template") {
  const json cases = chat_cases();
  REQUIRE(cases.size() == 29);
  for (const json& chat_case : cases) {
    CAPTURE(chat_case["name"]);
    const ChatFolder folder(chat_case);
    const auto tokenizer = open_tokenizer(folder.path());
    const ChatTemplate chat = open_chat_template(folder.path(), fifth_of_august_2026());
    for (const json& encoding : chat_case["encodings"]) {
      const auto prompt = encoding["prompt"].get<std::string>();
      CAPTURE(prompt);
      CHECK(chat.text(prompt) == encoding["text"].get<std::string>());
      CHECK(chat.encode(*tokenizer, prompt) == encoding["ids"].get<std::vector<TokenId>>());
    }
  }
}

TEST_CASE("a chat template that asks for today's date gets it") {
  for (const json& chat_case : chat_cases()) {
    if (chat_case["name"] != "llama 3 with today's date") continue;
    const ChatFolder folder(chat_case);
    const auto today = [] { return fmt::format("Today Date: {:%d %b %Y}\n", fmt::localtime(std::time(nullptr))); };
    const std::string before = today(), text = open_chat_template(folder.path()).text("x"), after = today();
    CHECK((text.find(before) != std::string::npos || text.find(after) != std::string::npos));  // midnight between them
    return;
  }
  FAIL("no such case");
}

TEST_CASE("a chat template is found wherever transformers keeps it") {
  ChatFolder folder(chat_cases()[0]);
  const std::string source = folder.config["chat_template"], expected = open_chat_template(folder.path()).text("x");
  folder.config["chat_template"] = {{{"name", "tool_use"}, {"template", "none"}},
                                    {{"name", "default"}, {"template", source}}};
  folder.write_config();
  CHECK(open_chat_template(folder.path() / "tokenizer.json").text("x") == expected);
  folder.config.erase("chat_template");
  folder.write_config();
  folder.write("chat_template.jinja", source);
  CHECK(open_chat_template(folder.path()).text("x") == expected);
}

TEST_CASE("a model without a chat template, or with one that is not known, is refused by name") {
  ChatFolder folder(chat_cases()[0]);
  CHECK(chat_error(folder).empty());
  const std::vector<std::pair<json, std::string>> refused{
      {json(), "there is no chat_template, so this is no chat model"},
      {"", "there is no chat_template, so this is no chat model"},
      {json::array(), "there is no chat_template, so this is no chat model"},
      {5, "chat_template"},
      {{{{"name", "tool_use"}, {"template", "x"}}, {{"name", "rag"}, {"template", "x"}}},
       "the chat_template has the names tool_use, rag, expected \"default\" among them"},
      {"{{ bos_token }}", "the chat_template does not write what a user says"},
      {"{{ messages | tojson }}", "the chat_template, line 1: filter \"tojson\" is not known"},
      {"{{ raise_exception('A system message is needed.') }}", "A system message is needed."},
      {"\n{% if x %}", "the chat_template, line 2: {% endif %} is missing"}};
  for (const auto& each : refused) {
    const auto& source = each.first;
    const std::string& reason = each.second;
    CAPTURE(source);
    folder.config["chat_template"] = source;
    folder.write_config();
    CHECK(chat_error(folder).find("tokenizer_config.json: ") != std::string::npos);
    CHECK(chat_error(folder).find(reason) != std::string::npos);
  }
}

TEST_CASE("a chat template has the special tokens of special_tokens_map.json where the configuration lists none") {
  ChatFolder folder(chat_cases()[0]);
  folder.config["chat_template"] = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}";
  folder.config.erase("bos_token");
  folder.config["eos_token"] = {{"content", "</s>"}};
  folder.write("special_tokens_map.json", json{{"bos_token", {{"content", "<b>"}}}, {"eos_token", "<e>"}}.dump());
  folder.write_config();
  CHECK(open_chat_template(folder.path()).text("x") == "<b>x<e>");
  folder.config["added_tokens_decoder"] = json::object();
  folder.config["pad_token"] = "<p>";
  folder.write_config();
  CHECK(open_chat_template(folder.path()).text("x") == "x</s><p>");
}

TEST_CASE("a prompt that a chat template refuses is an error") {
  const ChatTemplate chat(
      "{% if 'goat' in messages[0].content %}{{ raise_exception('no goats') }}{% endif %}{{ messages[0].content }}",
      {});
  CHECK(chat.text("a cow") == "a cow");
  CHECK_THROWS_WITH_AS(chat.text("a goat"), doctest::Contains("no goats"), tokenizer_error);
}

TEST_CASE("a BOS that a chat template writes before a system message alone is not there without one") {
  ChatFolder folder(chat_cases()[1]);
  folder.config["bos_token"] = "<|none|>";
  folder.config["chat_template"] = "{% if messages[0]['role'] == 'system' %}{{ bos_token }}{% endif %}" +
                                   std::string("{{ '[INST] ' + messages[0]['content'] + ' [/INST]' }}");
  folder.write_config();
  CHECK_NOTHROW(open_chat_template(folder.path()).encode(*open_tokenizer(folder.path()), "a"));
}

TEST_CASE("a byte without a token in a prompt is found by the offset at which its text begins") {
  ChatFolder folder(chat_cases()[0]);
  json file = json::parse(read(folder.path() / "tokenizer.json"));
  file["model"]["vocab"].erase("\u0104");  // byte 0x04
  folder.write("tokenizer.json", file.dump());
  const ChatTemplate chat = open_chat_template(folder.path());
  const std::string text = chat.text("a\x04");
  const std::string place = fmt::format("0x04 at offset {} of the text", text.find('\x04')),
                    begin = fmt::format("the prompt begins at offset {}", text.find("a\x04"));
  const auto encode = [&] { chat.encode(*open_tokenizer(folder.path()), "a\x04"); };
  CHECK_THROWS_WITH_AS(encode(), doctest::Contains(place.c_str()), tokenizer_error);
  CHECK_THROWS_WITH_AS(encode(), doctest::Contains(begin.c_str()), tokenizer_error);
}

TEST_CASE("a chat template that begins with a BOS that is no token is an error") {
  const json chat_case = chat_cases()[1];
  REQUIRE(chat_case["name"] == "chatml with BOS");
  ChatFolder folder(chat_case);
  folder.config["bos_token"] = "<|none|>";
  folder.write_config();
  CHECK_THROWS_WITH_AS(open_chat_template(folder.path()).encode(*open_tokenizer(folder.path()), "a"),
                       "the chat_template begins with bos_token <|none|>, which is no token", tokenizer_error);
}

/// A SentencePiece model without merges, of pieces and their types: 1 plain, 2 the unknown one, 3 control.
std::string sentence_piece_model(const std::vector<std::pair<std::string, char>>& pieces) {
  const auto field = [](const std::string& content) {
    return std::string("\n") + static_cast<char>(content.size()) + content;
  };
  std::string model;
  for (const auto& [text, type] : pieces) model += field(field(text) + '\x18' + type);
  return model;
}

TEST_CASE("a mark of a chat template that the tokenizer does not read in a text is an error") {
  const TemporaryFolder folder;
  std::vector<std::pair<std::string, char>> pieces{{"<unk>", 2}, {"<s>", 3}, {"</s>", 3}, {"\u2581", 1}, {"a", 1}};
  for (const char character : std::string("[]/INST")) pieces.push_back({{character}, 1});
  const ChatTemplate chat("{{ bos_token + '[INST] ' + messages[0].content + ' [/INST]' }}", {{"bos_token", "<s>"}});
  const auto plain = open_tokenizer(folder.write("tokenizer.model", sentence_piece_model(pieces)));
  CHECK(chat.encode(*plain, "a") == plain->encode("[INST] a [/INST]", true));
  pieces.push_back({"[/INST]", 3});
  const auto control = open_tokenizer(folder.write("tokenizer.model", sentence_piece_model(pieces)));
  CHECK_THROWS_WITH_AS(chat.encode(*control, "a"),
                       "the chat_template has the token [/INST], which this kind of tokenizer does not read in a text; "
                       "tokenizer.json does",
                       tokenizer_error);
}

TEST_CASE("tokenizer.model: BOS goes before the tokens, since SentencePiece does not read it in a text") {
  const auto path = real_input("llama2_tokenizer.model");
  if (!std::filesystem::exists(path)) {
    MESSAGE("skipped: no ", path.filename().string());
    return;
  }
  const auto tokenizer = open_tokenizer(path);
  const ChatTemplate chat("{{ bos_token + '[INST] ' + messages[0].content.strip() + ' [/INST]' }}",
                          {{"bos_token", "<s>"}});
  CHECK(chat.encode(*tokenizer, " Hello ") == tokenizer->encode("[INST] Hello [/INST]", true));
  CHECK(chat.encode(*tokenizer, "Hello").front() == 1);
}

}  // namespace
}  // namespace llama::test
