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

/// The day of that file.
std::tm fifth_of_august_2026() {
  std::tm day = {};
  day.tm_mday = 5;
  day.tm_mon = 7;
  day.tm_year = 2026 - 1900;
  return day;
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
  REQUIRE(cases.size() == 18);
  for (const json& chat_case : cases) {
    CAPTURE(chat_case["name"]);
    const ChatFolder folder(chat_case);
    const auto tokenizer = open_tokenizer(folder.path());
    const ChatTemplate chat = open_chat_template(folder.path(), fifth_of_august_2026());
    for (const json& encoding : chat_case["encodings"]) {
      const auto prompt = encoding["prompt"].get<std::string>();
      CAPTURE(prompt);
      CHECK(encoding["text"].get<std::string>().ends_with(chat.text(prompt)));
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

TEST_CASE("Zephyr: what a line's end becomes is known of one form only, and EOS is needed") {
  const std::string user = "{% if x %}\n{{ '<|user|>\\n' + message['content'] + eos_token }}\n{% endif %}\n",
                    answer = "{% if y %}\n{{ '<|assistant|>' }}\n{% endif %}\n";
  CHECK(ChatTemplate(user + answer, "", "</s>").text("x") == "<|user|>\nx</s>\n<|assistant|>\n");
  CHECK_THROWS_WITH_AS(ChatTemplate(user + answer, ""), doctest::Contains("has eos_token"), tokenizer_error);
  for (const std::string& other :
       {user + "{% if y %}{{ '<|assistant|>' }}{% endif %}", user + "{% if y %}\n{{- '<|assistant|>' }}\n{% endif %}",
        "{% if x %}{{ '<|user|>\\n' + message['content'] + '<|end|>' }}{% endif %}" + answer}) {
    CHECK_THROWS_WITH_AS(ChatTemplate(other, "", "</s>"), doctest::Contains("of a kind that is not known"),
                         tokenizer_error);
  }
  CHECK_THROWS_WITH_AS(ChatTemplate("{{ '<|system|>\\nYou are a goat' }}" + user + answer, "", "</s>"),
                       doctest::Contains("system message of its own"), tokenizer_error);
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

TEST_CASE("a model without a chat template, or with one of another kind, is refused by name") {
  ChatFolder folder(chat_cases()[0]);
  CHECK(chat_error(folder).empty());
  for (const char* source :
       {"{% for m in messages %}{{ '<start_of_turn>' + m['content'] }}{% endfor %}",
        "{{ '[SYSTEM_PROMPT]x[/SYSTEM_PROMPT][INST]' + m['content'] + '[/INST]' }}", "[INST]", "x"}) {
    folder.config["chat_template"] = source;
    folder.write_config();
    CHECK(
        chat_error(folder).ends_with("tokenizer_config.json: the chat_template is of a kind that is not known; ChatML, "
                                     "Llama 2, Llama 3, Mistral and "
                                     "Zephyr are"));
  }
  const std::string headers = "{{ '<|start_header_id|>' }}", cutoff = "{{ 'Cutting Knowledge Date: May 2024\\n' }}",
                    date = "{% set date_string = '1 May 2024' %}",
                    today = "{{ 'Today Date: ' + date_string + '\\n\\n' }}",
                    answer_3 =
                        "{% if add_generation_prompt %}"
                        "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";
  const std::string inst = "{{ '[INST] ' + content + ' [/INST]' }}", own_system = "has a system message of its own";
  CHECK_NOTHROW(ChatTemplate(headers + cutoff + date + today + answer_3, ""));
  CHECK_NOTHROW(ChatTemplate(
      inst + "{% set system_message = '' %}{% set system_message = false %}{% if message['role'] == 'system' %}"
             "{% set system_message = messages[0]['content'] %}{{ '<<SYS>>\\n' + system_message + '\\n<</SYS>>' }}",
      ""));
  const std::string turn = "{{ '<|im_start|>' + message['role'] + '\\n' + message['content']";
  for (const auto& refused : std::vector<std::pair<std::string, std::string>>{
           {"{{ '<|im_start|>system\\n' + system_message + '<|im_end|>\\n' }}", "from \"system_message\""},
           {"{% set s = 'a' %}{% set s = 'b' %}{{ '<|im_start|>system\\n' + s + '<|im_end|>\\n' }}", "from \"s\""},
           {"{% set s = 'a' %}{{ '<|im_start|>system\\n' }}{{ s }}{{ '<|im_end|>\\n' }}", "from \"s\""},
           {"{{ '<|im_start|>system\\nYou are ' + name + '<|im_end|>\\n' }}", "puts its system message together"},
           {"<|im_start|>system\\nYou are {{ name }}<|im_end|>\\n", "puts its system message together"},
           {turn + ".lstrip() + '<|im_end|>' }}", "trims texts in a way that is not known"},
           {turn + ".strip('x') + '<|im_end|>' }}", "trims texts in a way that is not known"},
           {"{{ messages[0]['content'] | trim }}" + turn + " + '<|im_end|>' }}",
            "trims texts in a way that is not known"},
           {headers + cutoff + today, "has its dates in a way that is not known"},
           {headers + cutoff + date, "has its dates in a way that is not known"},
           {headers + "{{ 'Cutting Knowledge Date: ' + cutoff + '\\n' }}" + date + today,
            "has its dates in a way that is not known"},
           {headers + cutoff + "{% set date_string = strftime_now('%Y') %}" + date + today,
            "has its dates in a way that is not known"},
           {headers + "{% set system_message = 'You are a goat' %}", own_system},
           {headers + "{% set ns.sys_prompt = \"You\" %}", own_system},
           {headers + "{{ '<|start_header_id|>system<|end_header_id|>\\n\\nYou are a goat<|eot_id|>' }}", own_system},
           {inst + "{% set system_message = messages[0]['content'] if x else 'You are a goat' %}", own_system},
           {inst + "{{ system_message | default('You are a goat') }}", own_system},
           {inst + "{{ '<<SYS>>\\nYou are a goat\\n<</SYS>>' }}", own_system},
           {turn + " | trim }}" + turn + " }}", "trims texts in a way that is not known"}}) {
    const std::string& source = refused.first;
    CAPTURE(source);
    folder.config["chat_template"] = source;
    folder.write_config();
    CHECK(chat_error(folder).find("tokenizer_config.json: the chat_template ") != std::string::npos);
    CHECK(chat_error(folder).find(refused.second) != std::string::npos);
  }
  for (const json& none : {json(), json(""), json::array()}) {
    folder.config["chat_template"] = none;
    folder.write_config();
    CHECK(chat_error(folder).ends_with("tokenizer_config.json: there is no chat_template, so this is no chat model"));
  }
  folder.config["chat_template"] = 5;
  folder.write_config();
  CHECK(chat_error(folder).find("tokenizer_config.json: ") != std::string::npos);
}

TEST_CASE("a chat template of a known kind that writes anything else is refused") {
  const std::string turn = "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}",
                    answer = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
                    turn_3 =
                        "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + "
                        "message['content'] | trim + '<|eot_id|>' }}",
                    answer_3 =
                        "{% if add_generation_prompt %}"
                        "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";
  const auto with = [](std::string text, const std::string& part, const std::string& other) {
    return text.replace(text.find(part), part.size(), other);
  };
  const std::string chatml = turn + answer, llama3 = turn_3 + answer_3;
  CHECK(ChatTemplate(chatml, "").text("x") == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");
  CHECK(ChatTemplate(
            with(chatml, "{% endif %}", "{% if enable_thinking is defined %}{{ '<think>' }}{% endif %}{% endif %}"), "")
            .text("x") == ChatTemplate(chatml, "").text("x"));
  CHECK(ChatTemplate("{% if tools %}{{ '<|im_start|>system\\nCall one.<|im_end|>\\n' }}{% endif %}" + chatml, "")
            .text("x") == ChatTemplate(chatml, "").text("x"));
  CHECK_NOTHROW(ChatTemplate(llama3, "<|begin_of_text|>"));
  for (const auto& refused : std::vector<std::pair<std::string, std::string>>{
           {with(chatml, "assistant\\n'", "assistant\\n<think>\\n'"), "begins an answer in its own way"},
           {with(chatml, "{% endif %}", "{{ '<think>' }}{% endif %}"), "begins an answer in its own way"},
           {turn, "begins an answer in its own way"},
           {with(chatml, "<|im_end|>\\n", "<|im_end|>"), "ends a turn without a newline"},
           {with(chatml, "message['role']", "names[message['role']]"), "other roles"},
           {with(chatml, "' + message['role'] + '", "human"), "other roles"},
           {with(chatml, "}}{%", "}}\n{%"), "white space between its tags"},
           {with(chatml, "%}{{", "%}  {{"), "white space between its tags"},
           {"{{ '<s>' }}" + chatml, "has the text of BOS"},
           {with(llama3, "\\n\\n' }}", "\\n\\n<think>\\n' }}"), "begins an answer in its own way"},
           {with(llama3, "\\n\\n", "\\n"), "has other headers"},
           {"{{ '<|start_header_id|>system<|end_header_id|>\\n\\n' }}{{ system }}{{ '<|eot_id|>' }}" + llama3,
            "always has a system message"},
           {"{{ '<s>' }}" + llama3, "has the text of BOS"},
           {"{{ '<bos>' }}" + chatml, "begins with a text of its own"},
           {"<bos>" + chatml, "begins with a text of its own"},
           {"{{ '<bos>' }}" + llama3, "begins with a text of its own"}}) {
    const std::string& source = refused.first;
    CAPTURE(source);
    CHECK_THROWS_WITH_AS(ChatTemplate(source, "<s>"), doctest::Contains(refused.second.c_str()), tokenizer_error);
  }
}

TEST_CASE("Mistral: white space around the prompt goes where the template trims it") {
  const std::string source = "{{ '[INST] ' + message['content'] + ' [/INST]' }}";
  CHECK(ChatTemplate(source, "").text(" x ") == "[INST]  x  [/INST]");
  for (const char* trim : {" | trim", ".strip()"}) {
    std::string trimming = source;
    trimming.insert(trimming.find("] +") + 1, trim);
    CHECK(ChatTemplate(trimming, "").text(" x ") == "[INST] x [/INST]");
    CHECK_THROWS_WITH_AS(ChatTemplate(trimming + source, ""), doctest::Contains("trims texts"), tokenizer_error);
    const std::string of_answers = "{{ ' ' + message['content']" + std::string(trim) + " + eos_token }}";
    CHECK(ChatTemplate(source + of_answers, "").text(" x ") == "[INST]  x  [/INST]");
    const std::string earlier = "{% set content = message['content']" + std::string(trim) + " %}";
    CHECK_THROWS_WITH_AS(ChatTemplate(earlier + source, ""), doctest::Contains("trims texts"), tokenizer_error);
  }
}

TEST_CASE("a BOS that a chat template writes before a system message alone is not there without one") {
  ChatFolder folder(chat_cases()[1]);
  folder.config["bos_token"] = "<|none|>";
  folder.config["chat_template"] = "{% if messages[0]['role'] == 'system' %}{{ bos_token }}{% endif %}" +
                                   std::string("{{ '[INST] ' + message['content'] + ' [/INST]' }}");
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
  const ChatTemplate chat("{{ bos_token + '[INST] ' + content + ' [/INST]' }}", "<s>");
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
  const ChatTemplate chat("{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}<<SYS>>", "<s>");
  CHECK(chat.encode(*tokenizer, " Hello ") == tokenizer->encode("[INST] Hello [/INST]", true));
  CHECK(chat.encode(*tokenizer, "Hello").front() == 1);
}

}  // namespace
}  // namespace llama::test
