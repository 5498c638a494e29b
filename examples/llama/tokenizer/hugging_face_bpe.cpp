#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <unordered_map>

#include "examples/llama/tokenizer/added_tokens.hpp"
#include "examples/llama/tokenizer/json.hpp"
#include "examples/llama/tokenizer/loaders.hpp"
#include "examples/llama/tokenizer/merge_pairs.hpp"
#include "examples/llama/tokenizer/normalizer.hpp"
#include "examples/llama/tokenizer/pre_tokenizer.hpp"
#include "examples/llama/tokenizer/text.hpp"

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

class HuggingFaceBpe final : public Tokenizer {
 public:
  HuggingFaceBpe(const json& file, const HuggingFaceConfigs& configs)
      : normalizer_(section(file, "normalizer")), pre_tokenizer_(section(file, "pre_tokenizer")) {
    read_model(member(file, "model"));
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
              utf8(normalizer_(unicode(part))),
              [&](std::string_view plain, std::size_t inner) {
                for (const UnicodeString& piece : pre_tokenizer_.split(unicode(plain), offset == 0 && inner == 0)) {
                  add_piece(utf8(piece), {text, offset}, tokens);
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

  /// A text, and where in it the piece that is being encoded cannot begin before.
  struct Place {
    std::string_view text;
    std::size_t offset;
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

    const json& vocabulary = member(model, "vocab");
    if (!vocabulary.is_object() || vocabulary.empty())
      fail("\"vocab\" is {}, expected tokens with ids", shown(vocabulary));
    for (const auto& [content, value] : vocabulary.items()) {
      const TokenId id = token_id(value, content);
      ids_.emplace(content, id);
      const std::string bytes = pre_tokenizer_.byte_level() ? bytes_of(content) : content;
      if (!tokens_.emplace(id, Token{bytes}).second) fail("id {} is given to two tokens, one is \"{}\"", id, content);
    }
    falls_back_to_bytes_ = member_or(model, "byte_fallback", false);
    for (std::size_t byte = 0; falls_back_to_bytes_ && byte < 256; ++byte) {
      const auto found = ids_.find(byte_token(static_cast<unsigned char>(byte)));
      if (found != ids_.end()) tokens_[found->second] = {std::string(1, static_cast<char>(byte)), false, true};
    }
    const auto unknown = ids_.find(member_or<std::string>(model, "unk_token", ""));
    if (unknown != ids_.end()) unknown_ = unknown->second;
    fuses_unknown_ = member_or(model, "fuse_unk", false);
    read_merges(member(model, "merges"));
  }

  static std::string byte_token(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

  void read_merges(const json& merges) {
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
        if (!merge[0].is_string() || !merge[1].is_string())
          fail("merge {} is {}, a pair of strings is expected", rank, shown(merge));
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        fail("merge {} is neither a string nor a pair of strings", rank);
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
      for (const json& part : member(decoder, "decoders")) read_decoder(part);
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
      const TokenId id = token_id(member(entry, "id"), content);
      if (content.empty()) fail("added token {} is empty", id);
      const AddedTokens::Token token{id, member_or(entry, "single_word", false), member_or(entry, "lstrip", false),
                                     member_or(entry, "rstrip", false)};
      const auto known = ids_.find(content);
      if (known == ids_.end() ? tokens_.contains(id) : known->second != id) {
        fail("added token \"{}\" has id {}, which contradicts the vocabulary", content, id);
      }
      tokens_[id] = {content, member_or(entry, "special", false), false};
      added_ids_[content] = id;
      if (member_or(entry, "normalized", true)) {
        const std::string changed = utf8(normalizer_(unicode(content)));
        if (!changed.empty()) added_in_normalized_.add(changed, token);
      } else {
        added_in_raw_.add(content, token);
      }
    }
  }

  void read_post_processor(const json& processor) {
    if (processor.is_null()) return;
    const std::string type = string_member(processor, "type");
    if (type == "Sequence") {
      for (const json& part : member(processor, "processors")) read_post_processor(part);
    } else if (type == "TemplateProcessing") {
      for (const json& part : member(processor, "single")) {
        if (part.contains("Sequence")) break;  // what follows the text would end it
        const std::string name = string_member(member(part, "SpecialToken"), "id");
        for (const json& id : member(member(member(processor, "special_tokens"), name), "ids")) {
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

  /// Id of the token that tokenizer_config.json names, as a string or as an object with "content"; none where the
  /// vocabulary lacks it.
  std::optional<TokenId> named_token(const json& config, const char* name) const {
    const json& value = section(config, name);
    if (value.is_null()) return std::nullopt;
    const std::string content = value.is_string() ? value.get<std::string>() : string_member(value, "content");
    if (const auto found = added_ids_.find(content); found != added_ids_.end()) return found->second;
    const auto found = ids_.find(content);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  void add_piece(const std::string& piece, const Place& place, std::vector<TokenId>& tokens) const {
    const auto whole = ids_.find(piece);
    if (ignores_merges_ && whole != ids_.end()) {
      tokens.push_back(whole->second);
      return;
    }
    std::vector<TokenId> parts = characters_as_tokens(piece, place);
    merge_pairs(parts, [&](TokenId left, TokenId right) -> std::optional<Merge<std::uint32_t>> {
      const auto found = merges_.find(pair_key(left, right));
      return found == merges_.end() ? std::nullopt : std::optional(found->second);
    });
    tokens.insert(tokens.end(), parts.begin(), parts.end());
  }

  std::vector<TokenId> characters_as_tokens(std::string_view piece, const Place& place) const {
    std::vector<TokenId> tokens;
    bool after_unknown = false;
    for (std::size_t start = 0, end = 0; start < piece.size(); start = end) {
      end = start + 1;
      while (end < piece.size() && (piece[end] & 0xC0) == 0x80) ++end;
      const std::string_view character = piece.substr(start, end - start);
      const auto found = ids_.find(character);
      const bool known = found != ids_.end();
      if (known) {
        tokens.push_back(found->second);
      } else if (add_bytes(character, tokens)) {
        continue;
      } else if (!unknown_) {
        fail_at(place, character);
      } else if (!after_unknown || !fuses_unknown_) {
        tokens.push_back(*unknown_);
      }
      after_unknown = !known;
    }
    return tokens;
  }

  /// Adds the tokens of the bytes of `character`, if the vocabulary has them all.
  bool add_bytes(std::string_view character, std::vector<TokenId>& tokens) const {
    if (!falls_back_to_bytes_) return false;
    std::vector<TokenId> bytes;
    for (const char byte : character) {
      const auto found = ids_.find(byte_token(static_cast<unsigned char>(byte)));
      if (found == ids_.end()) return false;
      bytes.push_back(found->second);
    }
    tokens.insert(tokens.end(), bytes.begin(), bytes.end());
    return true;
  }

  [[noreturn]] void fail_at(const Place& place, std::string_view character) const {
    const std::string bytes = pre_tokenizer_.byte_level() ? bytes_of(std::string(character)) : std::string(character);
    const std::size_t found = place.text.find(bytes, place.offset);
    // A normalizer can make characters that the text does not have.
    const std::size_t offset = found == std::string_view::npos ? place.offset : found;
    std::string name;
    for (const char byte : bytes)
      name += fmt::format("{}0x{:02X}", name.empty() ? "" : " ", static_cast<unsigned char>(byte));
    fail("the vocabulary has no token for the byte{} {} at offset {} of the text, and no unknown token",
         bytes.size() == 1 ? "" : "s", name, offset);
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

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  bool ignores_merges_ = false;
  StringMap<TokenId> ids_;
  std::unordered_map<TokenId, Token> tokens_;
  bool falls_back_to_bytes_ = false;
  std::optional<TokenId> unknown_;
  bool fuses_unknown_ = false;
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
    throw tokenizer_error(fmt::format("{}: {}", file, plain_reason(error)));
  }
}

}  // namespace llama
