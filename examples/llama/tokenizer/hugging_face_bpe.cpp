#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include "examples/llama/tokenizer/json.hpp"
#include "examples/llama/tokenizer/loaders.hpp"
#include "examples/llama/tokenizer/merge_pairs.hpp"
#include "examples/llama/tokenizer/pre_tokenizer.hpp"

namespace llama {
namespace {

using icu::UnicodeString;
using nlohmann::json;

struct StringHash : std::hash<std::string_view> {
  using is_transparent = void;
};

template <class T>
using StringMap = std::unordered_map<std::string, T, StringHash, std::equal_to<>>;

template <class... Parts>
[[noreturn]] void fail(fmt::format_string<Parts...> format, Parts&&... parts) {
  throw tokenizer_error(fmt::format(format, std::forward<Parts>(parts)...));
}

std::string utf8(const UnicodeString& text) {
  std::string result;
  return text.toUTF8String(result);
}

UnicodeString unicode(std::string_view text) {
  if (text.size() > std::numeric_limits<std::int32_t>::max()) {
    fail("text of {} bytes is too long, at most 2^31 - 1 can be encoded", text.size());
  }
  return UnicodeString::fromUTF8({text.data(), static_cast<std::int32_t>(text.size())});
}

/// GPT-2's printable stand-in for each byte: itself where Latin-1 prints it, else U+0100 and on.
std::array<char16_t, 256> byte_characters() {
  std::array<char16_t, 256> characters{};
  char16_t stand_in = 0x100;
  for (char16_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    characters[byte] = printable ? byte : stand_in++;
  }
  return characters;
}

/// Bytes that a byte-level token stands for; a token with other characters is kept as it is.
std::string bytes_of(const std::string& token) {
  static const auto byte_of = [] {
    std::map<char16_t, char> map;
    const auto characters = byte_characters();
    for (std::size_t byte = 0; byte < 256; ++byte) map[characters[byte]] = static_cast<char>(byte);
    return map;
  }();
  const UnicodeString characters = unicode(token);
  std::string bytes;
  for (std::int32_t i = 0; i < characters.length(); ++i) {
    const auto found = byte_of.find(characters[i]);
    if (found == byte_of.end()) return token;
    bytes += found->second;
  }
  return bytes;
}

/// Added tokens, found in a text before anything else is; the longest wins where several start.
class AddedTokens {
 public:
  void add(const std::string& content, TokenId token) {
    tokens_.emplace(content, token);
    lengths_.insert(content.size());
    starts_ += content.substr(0, 1);
  }

  /// Calls `on_text(part, offset)` and `on_token(id)` in the order of `text`; never with empty parts.
  template <class OnText, class OnToken>
  void split(std::string_view text, OnText on_text, OnToken on_token) const {
    std::size_t start = 0, i = 0;
    const auto flush = [&] {
      if (i > start) on_text(text.substr(start, i - start), start);
    };
    while ((i = std::min(text.find_first_of(starts_, i), text.size())) < text.size()) {
      const auto found = longest_at(text.substr(i));
      if (found == tokens_.end()) {
        ++i;
        continue;
      }
      flush();
      on_token(found->second);
      start = i += found->first.size();
    }
    flush();
  }

 private:
  StringMap<TokenId>::const_iterator longest_at(std::string_view text) const {
    for (const std::size_t length : lengths_) {
      if (length > text.size()) continue;
      const auto found = tokens_.find(text.substr(0, length));
      if (found != tokens_.end()) return found;
    }
    return tokens_.end();
  }

  StringMap<TokenId> tokens_;
  std::set<std::size_t, std::greater<>> lengths_;
  std::string starts_;
};

class HuggingFaceBpe final : public Tokenizer {
 public:
  HuggingFaceBpe(const json& file, const HuggingFaceConfigs& configs)
      : normalizer_(read_normalizer(section(file, "normalizer"))), pre_tokenizer_(section(file, "pre_tokenizer")) {
    read_model(file.at("model"));
    read_decoder(section(file, "decoder"));
    read_added_tokens(section(file, "added_tokens"));
    read_post_processor(section(file, "post_processor"));
    read_special_tokens(configs);
    Index largest = -1;
    for (const auto& [id, token] : tokens_) largest = std::max<Index>(largest, id);
    vocabulary_size_ = largest + 1;
  }

  std::vector<TokenId> encode(std::string_view text, bool add_bos) const override {
    std::vector<TokenId> tokens;
    if (add_bos) tokens = prefix_;
    const auto add_token = [&](TokenId token) { tokens.push_back(token); };
    added_in_raw_.split(
        text,
        [&](std::string_view part, std::size_t offset) {
          added_in_normalized_.split(
              utf8(normalized(unicode(part))),
              [&](std::string_view plain, std::size_t inner) {
                for (const UnicodeString& piece : pre_tokenizer_.split(unicode(plain), offset == 0 && inner == 0)) {
                  add_piece(utf8(piece), tokens);
                }
              },
              add_token);
        },
        add_token);
    return tokens;
  }

 private:
  struct Token {
    std::string bytes;
    bool special = false;
    bool is_byte = false;
  };

  static const json& section(const json& file, const char* name) {
    static const json null;
    const auto found = file.find(name);
    return found == file.end() ? null : *found;
  }

  static TokenId token_id(const json& value, std::string_view token) {
    constexpr auto largest = std::numeric_limits<TokenId>::max() - 1;
    const bool fits = value.is_number_unsigned() && value.get<std::uint64_t>() <= static_cast<std::uint64_t>(largest);
    if (!fits) fail("token \"{}\" has id {}, allowed are 0 to {}", token, value.dump(), largest);
    return value.get<TokenId>();
  }

  void read_model(const json& model) {
    const auto type = member_or<std::string>(model, "type", "BPE");
    if (type != "BPE") fail("model {} is not supported, only BPE is", type);
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const auto affix = member_or<std::string>(model, name, "");
      if (!affix.empty()) fail("model with {} \"{}\" is not supported", name, affix);
    }
    if (member_or(model, "dropout", 0.0) != 0.0) fail("model with dropout is not supported");
    ignores_merges_ = member_or(model, "ignore_merges", false);

    const bool byte_level = pre_tokenizer_.byte_level();
    for (const auto& [content, value] : model.at("vocab").items()) {
      const TokenId id = token_id(value, content);
      const std::string bytes = byte_level ? bytes_of(content) : content;
      if (!ids_.emplace(bytes, id).second) fail("two tokens of the vocabulary stand for \"{}\"", content);
      if (!tokens_.emplace(id, Token{bytes}).second) fail("id {} is given to two tokens, one is \"{}\"", id, content);
    }
    read_byte_tokens(byte_level, member_or(model, "byte_fallback", false));
    read_merges(model.at("merges"), byte_level);
  }

  void read_byte_tokens(bool byte_level, bool byte_fallback) {
    if (!byte_level && !byte_fallback) {
      fail("BPE model has neither a ByteLevel pre_tokenizer nor byte_fallback: not supported");
    }
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::string content(1, static_cast<char>(byte));
      const auto found = ids_.find(byte_level ? content : fmt::format("<0x{:02X}>", byte));
      if (found == ids_.end()) fail("vocabulary has no token for byte 0x{:02X}", byte);
      byte_tokens_[byte] = found->second;
      if (!byte_level) tokens_[found->second] = {content, false, true};
    }
  }

  void read_merges(const json& merges, bool byte_level) {
    std::uint32_t rank = 0;
    for (const json& merge : merges) {
      std::string left, right;
      if (merge.is_string()) {
        const auto text = merge.get<std::string>();
        const std::size_t space = text.find(' ');
        if (space == std::string::npos) fail("merge {} is \"{}\", two tokens are expected", rank, text);
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        fail("merge {} is neither a string nor a pair of strings", rank);
      }
      if (byte_level) {
        left = bytes_of(left);
        right = bytes_of(right);
      }
      const auto id_of = [&](const std::string& token) {
        const auto found = ids_.find(token);
        if (found == ids_.end()) fail("merge {} needs the token \"{}\", which the vocabulary lacks", rank, token);
        return found->second;
      };
      merges_.insert_or_assign(pair_key(id_of(left), id_of(right)), Merge<std::uint32_t>{rank, id_of(left + right)});
      ++rank;
    }
  }

  void read_decoder(const json& decoder) const {
    if (decoder.is_null()) return;
    const std::string type = string_member(decoder, "type");
    if (type == "Sequence") {
      for (const json& part : decoder.at("decoders")) read_decoder(part);
      return;
    }
    using Names = std::set<std::string>;
    static const Names of_bytes{"ByteLevel"}, of_characters{"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"};
    if (!(pre_tokenizer_.byte_level() ? of_bytes : of_characters).contains(type)) {
      fail("decoder {} is not supported with this pre_tokenizer", type);
    }
  }

  void read_added_tokens(const json& added) {
    for (const json& entry : added) {
      const std::string content = string_member(entry, "content");
      const TokenId id = token_id(entry.at("id"), content);
      if (content.empty()) fail("added token {} is empty", id);
      for (const char* name : {"single_word", "lstrip", "rstrip"}) {
        if (member_or(entry, name, false)) fail("added token \"{}\" with {} is not supported", content, name);
      }
      const auto known = ids_.find(pre_tokenizer_.byte_level() ? bytes_of(content) : content);
      if (known == ids_.end() ? tokens_.contains(id) : known->second != id) {
        fail("added token \"{}\" has id {}, which contradicts the vocabulary", content, id);
      }
      tokens_[id] = {content, member_or(entry, "special", false), false};
      added_ids_[content] = id;
      if (member_or(entry, "normalized", true)) {
        const std::string changed = utf8(normalized(unicode(content)));
        if (!changed.empty()) added_in_normalized_.add(changed, id);
      } else {
        added_in_raw_.add(content, id);
      }
    }
  }

  void read_post_processor(const json& processor) {
    if (processor.is_null()) return;
    const std::string type = string_member(processor, "type");
    if (type == "Sequence") {
      for (const json& part : processor.at("processors")) read_post_processor(part);
    } else if (type == "TemplateProcessing") {
      for (const json& part : processor.at("single")) {
        if (part.contains("Sequence")) break;  // what follows the text would end it
        const std::string name = string_member(part.at("SpecialToken"), "id");
        for (const json& id : processor.at("special_tokens").at(name).at("ids")) {
          prefix_.push_back(token_id(id, name));
          if (!tokens_.contains(prefix_.back()))
            fail("post_processor token \"{}\" has the unknown id {}", name, id.dump());
        }
      }
    } else if (type != "ByteLevel") {
      fail("post_processor {} is not supported (TemplateProcessing, ByteLevel, Sequence are)", type);
    }
  }

  void read_special_tokens(const HuggingFaceConfigs& configs) {
    const auto parse = [](const std::string& text, const char* file) {
      return text.empty() ? json::object() : parse_tokenizer_json(text, file);
    };
    const json config = parse(configs.tokenizer_config, "tokenizer_config.json");
    const json generation = parse(configs.generation_config, "generation_config.json");
    if (prefix_.size() == 1) {
      special_.bos = prefix_.front();
    } else {
      special_.bos = named_token(config, "bos_token");
    }
    std::vector<TokenId> stop;
    if (const auto eos = named_token(config, "eos_token")) stop.push_back(*eos);
    const json& ends = section(generation, "eos_token_id");
    for (const json& end : ends.is_array() ? ends : ends.is_null() ? json::array() : json::array({ends})) {
      stop.push_back(token_id(end, "eos_token_id of generation_config.json"));
    }
    for (const TokenId token : stop) {
      if (std::ranges::find(special_.stop, token) == special_.stop.end()) special_.stop.push_back(token);
    }
  }

  /// Id of the token that tokenizer_config.json names, as a string or as an object with "content".
  std::optional<TokenId> named_token(const json& config, const char* name) const {
    const json& value = section(config, name);
    if (value.is_null()) return std::nullopt;
    const std::string content = value.is_string() ? value.get<std::string>() : string_member(value, "content");
    if (const auto found = added_ids_.find(content); found != added_ids_.end()) return found->second;
    const auto found = ids_.find(pre_tokenizer_.byte_level() ? bytes_of(content) : content);
    if (found == ids_.end()) fail("tokenizer_config.json has {} \"{}\", which is no token", name, content);
    return found->second;
  }

  UnicodeString normalized(UnicodeString text) const {
    for (const NormalizerStep& step : normalizer_) step(text);
    if (text.isBogus()) fail("text is too long for the normalizer");  // ICU's only sign of it
    return text;
  }

  void add_piece(const std::string& piece, std::vector<TokenId>& tokens) const {
    const auto whole = ids_.find(piece);
    if (ignores_merges_ && whole != ids_.end()) {
      tokens.push_back(whole->second);
      return;
    }
    std::vector<TokenId> parts = pre_tokenizer_.byte_level() ? bytes_as_tokens(piece) : characters_as_tokens(piece);
    merge_pairs(parts, [&](TokenId left, TokenId right) -> std::optional<Merge<std::uint32_t>> {
      const auto found = merges_.find(pair_key(left, right));
      return found == merges_.end() ? std::nullopt : std::optional(found->second);
    });
    tokens.insert(tokens.end(), parts.begin(), parts.end());
  }

  std::vector<TokenId> bytes_as_tokens(std::string_view piece) const {
    std::vector<TokenId> tokens;
    for (const char byte : piece) tokens.push_back(byte_tokens_[static_cast<unsigned char>(byte)]);
    return tokens;
  }

  std::vector<TokenId> characters_as_tokens(std::string_view piece) const {
    std::vector<TokenId> tokens;
    for (std::size_t start = 0; start < piece.size();) {
      std::size_t end = start + 1;
      while (end < piece.size() && (piece[end] & 0xC0) == 0x80) ++end;
      const std::string_view character = piece.substr(start, end - start);
      if (const auto found = ids_.find(character); found != ids_.end()) {
        tokens.push_back(found->second);
      } else {
        const auto bytes = bytes_as_tokens(character);
        tokens.insert(tokens.end(), bytes.begin(), bytes.end());
      }
      start = end;
    }
    return tokens;
  }

  std::string token_bytes(TokenId previous, TokenId id) const override {
    const auto found = tokens_.find(id);
    if (found == tokens_.end() || found->second.special) return {};
    const Token& token = found->second;
    if (pre_tokenizer_.byte_level() || token.is_byte) return token.bytes;
    UnicodeString text = unicode(token.bytes);
    text.findAndReplace(u'\u2581', u' ');
    const bool starts_text = previous == no_token || previous == special_.bos;
    if (starts_text && text.startsWith(u' ')) text.remove(0, 1);
    return utf8(text);
  }

  static std::uint64_t pair_key(TokenId left, TokenId right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint64_t>(right);
  }

  std::vector<NormalizerStep> normalizer_;
  PreTokenizer pre_tokenizer_;
  bool ignores_merges_ = false;
  StringMap<TokenId> ids_;
  std::unordered_map<TokenId, Token> tokens_;
  std::array<TokenId, 256> byte_tokens_{};
  std::unordered_map<std::uint64_t, Merge<std::uint32_t>> merges_;
  StringMap<TokenId> added_ids_;
  AddedTokens added_in_raw_, added_in_normalized_;
  std::vector<TokenId> prefix_;  // what the template puts before a text
};

}  // namespace

std::unique_ptr<Tokenizer> load_hugging_face_bpe(std::string_view bytes, const std::string& file,
                                                 const HuggingFaceConfigs& configs) {
  const json content = parse_tokenizer_json(bytes, file);
  try {
    return std::make_unique<HuggingFaceBpe>(content, configs);
  } catch (const tokenizer_error& error) {
    throw tokenizer_error(fmt::format("{}: {}", file, error.what()));
  } catch (const json::exception& error) {
    throw tokenizer_error(fmt::format("{}: {}", file, error.what()));
  }
}

}  // namespace llama
