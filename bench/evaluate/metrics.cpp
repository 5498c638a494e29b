#include "bench/evaluate/metrics.hpp"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <new>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "examples/llama/base.hpp"

namespace llama {
namespace {

/// Code points, the characters that Python counts.
using Text = std::u32string;
using TextView = std::u32string_view;

icu::UnicodeString unicode(std::string_view text) {
  return icu::UnicodeString::fromUTF8({text.data(), static_cast<std::int32_t>(text.size())});
}

Text code_points(const icu::UnicodeString& text) {
  if (text.isBogus()) throw std::bad_alloc();  // ICU's only sign of a failed allocation; it reads as empty
  Text points;
  for (std::int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) {
    points += static_cast<char32_t>(text.char32At(i));
  }
  return points;
}

Text code_points(std::string_view text) { return code_points(unicode(text)); }

// Python's str.isspace, re's \d and \w (but for the underscore, a punctuation), and string.punctuation.
bool is_space(char32_t point) { return u_isspace(static_cast<UChar32>(point)); }
bool is_digit(char32_t point) { return u_isdigit(static_cast<UChar32>(point)); }
bool is_word_character(char32_t point) {
  return (U_GET_GC_MASK(static_cast<UChar32>(point)) & (U_GC_L_MASK | U_GC_N_MASK)) != 0;
}
bool is_punctuation(char32_t point) {
  return point > U' ' && point < U'\x7f' && !u_isalnum(static_cast<UChar32>(point));
}

/// The longest runs of characters for which `belongs` is true.
template <class Predicate>
std::vector<TextView> runs(TextView text, Predicate belongs) {
  std::vector<TextView> found;
  for (auto begin = text.begin(); begin != text.end();) {
    begin = std::find_if(begin, text.end(), belongs);
    const auto end = std::find_if_not(begin, text.end(), belongs);
    if (begin != end) found.emplace_back(begin, end);
    begin = end;
  }
  return found;
}

std::vector<TextView> words(TextView text) {
  return runs(text, [](char32_t point) { return !is_space(point); });
}

/// Blanks out each article that stands alone between characters that are not word characters.
void blank_articles(Text& text) {
  for (const TextView word : runs(text, is_word_character)) {
    if (word == U"a" || word == U"an" || word == U"the") {
      std::fill_n(text.begin() + (word.data() - text.data()), word.size(), U' ');
    }
  }
}

Text normalized(std::string_view answer) {
  Text text = code_points(unicode(answer).toLower(icu::Locale::getRoot()));
  std::erase_if(text, is_punctuation);
  blank_articles(text);
  return text;
}

std::string_view without_leading_newlines(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}

// ROUGE-L

using Word = std::size_t;
using Sentence = std::vector<Word>;
/// Numbers words in the order in which they come.
using Vocabulary = std::unordered_map<Text, Word>;

/// The sentences of `text`. As in the package rouge, white space alone between two full stops is one empty word.
std::vector<Sentence> sentences(std::string_view text, Vocabulary& vocabulary) {
  const Text points = code_points(text);
  std::vector<Sentence> result;
  for (const TextView piece : runs(points, [](char32_t point) { return point != U'.'; })) {
    std::vector<TextView> names = words(piece);
    if (names.empty()) names.emplace_back();
    Sentence& sentence = result.emplace_back();
    for (const TextView name : names) {
      sentence.push_back(vocabulary.try_emplace(Text(name), vocabulary.size()).first->second);
    }
  }
  return result;
}

/// Sets `common[word]` for the words of a longest common subsequence; which one of several is the choice of the package
/// rouge. One bit per pair of words remembers the way back.
void mark_common(const Sentence& reference, const Sentence& prediction, std::vector<bool>& common) {
  const std::size_t width = prediction.size();
  std::vector<std::size_t> above(width + 1);
  std::vector<std::size_t> row(width + 1);
  std::vector<bool> go_up(reference.size() * width);
  for (std::size_t i = 0; i < reference.size(); ++i) {
    for (std::size_t j = 0; j < width; ++j) {
      if (reference[i] == prediction[j]) {
        row[j + 1] = above[j] + 1;
      } else {
        go_up[i * width + j] = above[j + 1] > row[j];
        row[j + 1] = std::max(above[j + 1], row[j]);
      }
    }
    std::swap(above, row);
  }
  for (std::size_t i = reference.size(), j = width; i > 0 && j > 0;) {
    if (reference[i - 1] == prediction[j - 1]) {
      common[prediction[j - 1]] = true;
      --i, --j;
    } else {
      --(go_up[(i - 1) * width + j - 1] ? i : j);
    }
  }
}

double distinct_words(const std::vector<Sentence>& sentences, std::size_t vocabulary) {
  std::vector<bool> present(vocabulary);
  for (const Sentence& sentence : sentences) {
    for (const Word word : sentence) present[word] = true;
  }
  return static_cast<double>(std::ranges::count(present, true));
}

// Numbers

double share_equal_to(TextView number, std::string_view prediction) {
  const Text text = code_points(prediction);
  const std::vector<TextView> numbers = runs(text, is_digit);
  if (numbers.empty()) return 0;
  return static_cast<double>(std::ranges::count(numbers, number)) / static_cast<double>(numbers.size());
}

/// The digits after the first "Paragraph " that has some.
Text paragraph_number(std::string_view answer) {
  constexpr TextView name = U"Paragraph ";
  const Text text = code_points(answer);
  for (std::size_t at = text.find(name); at != Text::npos; at = text.find(name, at + 1)) {
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at + name.size());
    const auto end = std::find_if_not(begin, text.end(), is_digit);
    if (begin != end) return {begin, end};
  }
  fail("answer \"", answer, "\" of a retrieval data set holds no \"Paragraph\" with a number");
}

// Similarity of code

/// Counts matching characters as Python's difflib.SequenceMatcher(None, a, b) does with its autojunk.
class SequenceMatcher {
 public:
  SequenceMatcher(TextView a, TextView b) : a_(a), b_(b) {
    for (std::size_t j = 0; j < b.size(); ++j) positions_[b[j]].push_back(j);
    if (b.size() >= 200) {
      std::erase_if(positions_, [&](const auto& entry) { return entry.second.size() > b.size() / 100 + 1; });
    }
  }

  std::size_t matches() const {
    std::size_t count = 0;
    std::vector<Block> open{{0, a_.size(), 0, b_.size()}};
    while (!open.empty()) {
      const Block block = open.back();
      open.pop_back();
      const Match match = longest_match(block);
      if (match.size == 0) continue;
      count += match.size;
      open.push_back({block.a_begin, match.a, block.b_begin, match.b});
      open.push_back({match.a + match.size, block.a_end, match.b + match.size, block.b_end});
    }
    return count;
  }

 private:
  struct Block {
    std::size_t a_begin, a_end, b_begin, b_end;
  };
  struct Match {
    std::size_t a, b, size;
  };

  /// The longest match of characters that are not too frequent in b, extended by any that are equal on either side.
  Match longest_match(const Block& block) const {
    Match best{block.a_begin, block.b_begin, 0};
    // Entry j + 1 - b_begin: length of the match that ends at character j of b.
    std::vector<std::size_t> ending(block.b_end - block.b_begin + 1);
    std::vector<std::size_t> next(ending.size());
    for (std::size_t i = block.a_begin; i < block.a_end; ++i) {
      std::ranges::fill(next, 0);
      if (const auto found = positions_.find(a_[i]); found != positions_.end()) {
        for (const std::size_t j : found->second) {
          if (j < block.b_begin || j >= block.b_end) continue;
          const std::size_t size = ending[j - block.b_begin] + 1;
          next[j - block.b_begin + 1] = size;
          if (size > best.size) best = {i + 1 - size, j + 1 - size, size};
        }
      }
      std::swap(ending, next);
    }
    while (best.a > block.a_begin && best.b > block.b_begin && a_[best.a - 1] == b_[best.b - 1]) {
      --best.a, --best.b, ++best.size;
    }
    while (best.a + best.size < block.a_end && best.b + best.size < block.b_end &&
           a_[best.a + best.size] == b_[best.b + best.size]) {
      ++best.size;
    }
    return best;
  }

  TextView a_;
  TextView b_;
  std::map<char32_t, std::vector<std::size_t>> positions_;
};

std::string_view first_code_line(std::string_view prediction) {
  std::string_view rest = without_leading_newlines(prediction);
  while (true) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    if (line.find_first_of("`#") == std::string_view::npos && line.find("//") == std::string_view::npos) return line;
    if (end == std::string_view::npos) return {};
    rest.remove_prefix(end + 1);
  }
}

// Data sets

constexpr std::string_view single_document = "single-document QA";
constexpr std::string_view multi_document = "multi-document QA";
constexpr std::string_view summarization = "summarization";
constexpr std::string_view few_shot = "few-shot learning";
constexpr std::string_view synthetic = "synthetic tasks";
constexpr std::string_view code_completion = "code completion";
constexpr std::array categories{single_document, multi_document, summarization, few_shot, synthetic, code_completion};

enum class Metric { token_f1, rouge_l, classification, retrieval, count, code_similarity };

struct Dataset {
  std::string_view name;
  std::string_view category;
  Metric metric;
};

constexpr std::array datasets{
    Dataset{"narrativeqa", single_document, Metric::token_f1},
    Dataset{"qasper", single_document, Metric::token_f1},
    Dataset{"multifieldqa_en", single_document, Metric::token_f1},
    Dataset{"hotpotqa", multi_document, Metric::token_f1},
    Dataset{"2wikimqa", multi_document, Metric::token_f1},
    Dataset{"musique", multi_document, Metric::token_f1},
    Dataset{"gov_report", summarization, Metric::rouge_l},
    Dataset{"qmsum", summarization, Metric::rouge_l},
    Dataset{"multi_news", summarization, Metric::rouge_l},
    Dataset{"trec", few_shot, Metric::classification},
    Dataset{"triviaqa", few_shot, Metric::token_f1},
    Dataset{"samsum", few_shot, Metric::rouge_l},
    Dataset{"lsht", few_shot, Metric::classification},
    Dataset{"passage_count", synthetic, Metric::count},
    Dataset{"passage_retrieval_en", synthetic, Metric::retrieval},
    Dataset{"lcc", code_completion, Metric::code_similarity},
    Dataset{"repobench-p", code_completion, Metric::code_similarity},
    Dataset{"tiny_single_doc_qa", single_document, Metric::token_f1},
    Dataset{"tiny_multi_doc_qa", multi_document, Metric::token_f1},
    Dataset{"tiny_two_hop", multi_document, Metric::token_f1},
    Dataset{"tiny_summarization", summarization, Metric::rouge_l},
    Dataset{"tiny_few_shot", few_shot, Metric::classification},
    Dataset{"tiny_passage_retrieval", synthetic, Metric::retrieval},
    Dataset{"tiny_passkey", synthetic, Metric::token_f1},
    Dataset{"tiny_counting", synthetic, Metric::count},
    Dataset{"tiny_code", code_completion, Metric::code_similarity},
};

const Dataset& dataset_named(std::string_view name) {
  const auto* const found = std::ranges::find(datasets, name, &Dataset::name);
  if (found != datasets.end()) return *found;
  std::string known;
  for (const Dataset& dataset : datasets) (known += known.empty() ? "" : ", ") += dataset.name;
  fail("unknown data set \"", name, "\" (known are ", known, ")");
}

}  // namespace

double token_f1(std::string_view prediction, std::string_view answer) {
  const Text predicted_text = normalized(prediction);
  const Text expected_text = normalized(answer);
  std::vector<TextView> predicted = words(predicted_text);
  std::vector<TextView> expected = words(expected_text);
  std::ranges::sort(predicted);
  std::ranges::sort(expected);
  std::vector<TextView> common;
  std::ranges::set_intersection(predicted, expected, std::back_inserter(common));
  if (common.empty()) return 0;
  const double same = static_cast<double>(common.size());
  const double precision = same / static_cast<double>(predicted.size());
  const double recall = same / static_cast<double>(expected.size());
  return 2 * precision * recall / (precision + recall);
}

double rouge_l(std::string_view prediction, std::string_view answer) {
  Vocabulary vocabulary;
  const std::vector<Sentence> predicted = sentences(prediction, vocabulary);
  const std::vector<Sentence> expected = sentences(answer, vocabulary);
  if (predicted.empty() || expected.empty()) return 0;
  std::vector<bool> common(vocabulary.size());
  for (const Sentence& reference : expected) {
    for (const Sentence& sentence : predicted) mark_common(reference, sentence, common);
  }
  const double same = static_cast<double>(std::ranges::count(common, true));
  const double precision = same / distinct_words(predicted, vocabulary.size());
  const double recall = same / distinct_words(expected, vocabulary.size());
  return 2 * (precision * recall / (precision + recall + 1e-8));
}

double classification(std::string_view prediction, std::string_view answer, std::span<const std::string> all_classes) {
  std::vector<std::string_view> named;
  for (const std::string& name : all_classes) {
    if (prediction.find(name) != std::string_view::npos) named.push_back(name);
  }
  // LongBench removes from the list that it walks, and so never looks at the name after a removed one.
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (named[i] == answer || answer.find(named[i]) == std::string_view::npos) continue;
    named.erase(named.begin() + static_cast<std::ptrdiff_t>(i));
  }
  const bool right = std::ranges::find(named, answer) != named.end();
  return right ? 1 / static_cast<double>(named.size()) : 0;
}

double retrieval(std::string_view prediction, std::string_view answer) {
  return share_equal_to(paragraph_number(answer), prediction);
}

double count(std::string_view prediction, std::string_view answer) {
  return share_equal_to(code_points(answer), prediction);
}

double code_similarity(std::string_view prediction, std::string_view answer) {
  const Text line = code_points(first_code_line(prediction));
  const Text expected = code_points(answer);
  if (line == expected) return 1;  // both may be empty
  const double matches = static_cast<double>(SequenceMatcher(line, expected).matches());
  const double ratio = 2 * matches / static_cast<double>(line.size() + expected.size());
  return std::nearbyint(100 * ratio) / 100;  // like Python's round, to even
}

double score(std::string_view dataset, std::string_view prediction, std::span<const std::string> answers,
             std::span<const std::string> all_classes) {
  const Dataset& wanted = dataset_named(dataset);
  if (wanted.metric == Metric::classification && all_classes.empty()) {
    fail("data set \"", dataset, "\" needs all_classes with at least one class, not none");
  }
  if (wanted.category == few_shot) {
    prediction = without_leading_newlines(prediction);
    prediction = prediction.substr(0, prediction.find('\n'));
  }
  const auto against = [&](std::string_view answer) {
    switch (wanted.metric) {
      case Metric::token_f1: return token_f1(prediction, answer);
      case Metric::rouge_l: return rouge_l(prediction, answer);
      case Metric::classification: return classification(prediction, answer, all_classes);
      case Metric::retrieval: return retrieval(prediction, answer);
      case Metric::count: return count(prediction, answer);
      case Metric::code_similarity: break;
    }
    return code_similarity(prediction, answer);
  };
  double best = 0;
  for (const std::string& answer : answers) best = std::max(best, against(answer));
  return best;
}

std::string_view category(std::string_view dataset) { return dataset_named(dataset).category; }

bool asked_in_chat(std::string_view dataset) {
  const std::string_view of = category(dataset);
  return of != few_shot && of != code_completion;
}

double dataset_score(std::span<const double> scores) {
  if (scores.empty()) fail("the score of a data set needs at least one prediction, not 0");
  return 100 * std::reduce(scores.begin(), scores.end()) / static_cast<double>(scores.size());
}

std::vector<CategoryScore> category_scores(std::span<const DatasetScore> scores) {
  std::array<CategoryScore, categories.size()> sums;
  for (const DatasetScore& dataset : scores) {
    const auto* const found = std::ranges::find(categories, category(dataset.dataset));
    CategoryScore& sum = sums[static_cast<std::size_t>(found - categories.begin())];
    sum.category = *found;
    sum.score += dataset.score;
    ++sum.datasets;
  }
  std::vector<CategoryScore> result;
  for (CategoryScore& sum : sums) {
    if (sum.datasets == 0) continue;
    sum.score /= static_cast<double>(sum.datasets);
    result.push_back(sum);
  }
  return result;
}

}  // namespace llama
