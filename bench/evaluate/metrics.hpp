#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// LongBench's metrics, equal to its Python (with the packages rouge 1.0.1 and fuzzywuzzy 0.18.0) wherever that gives a
/// value. All texts are UTF-8; bytes that are not count as U+FFFD. Every metric is in [0, 1].
namespace llama {

/// F1 of the words, as bags, after lower case and without ASCII punctuation and the words a, an, the.
double token_f1(std::string_view prediction, std::string_view answer);

/// Summary-level ROUGE-L F of the package rouge: sentences end at ".", words are counted once. Unlike Python, whose
/// recursion limit makes LongBench give 0 to sentences of about 1000 words, it has no limit of length.
double rouge_l(std::string_view prediction, std::string_view answer);

/// 1 / (number of classes that the prediction names) if `answer` is among them, else 0. A name that is a part of
/// `answer` does not count, except, as in LongBench, one that directly follows another such name among those named.
double classification(std::string_view prediction, std::string_view answer, std::span<const std::string> all_classes);

/// Share of the numbers in the prediction that are the one in `answer`, such as "Paragraph 17". Throws
/// `std::invalid_argument` when `answer` holds no "Paragraph" with a number.
double retrieval(std::string_view prediction, std::string_view answer);

/// Share of the numbers in the prediction that equal `answer`, digit by digit.
double count(std::string_view prediction, std::string_view answer);

/// How alike `answer` and the prediction's first line without comment signs are: fuzz.ratio without python-Levenshtein
/// (that is, difflib), in steps of 0.01.
double code_similarity(std::string_view prediction, std::string_view answer);

/// Score of one prediction: the best over the answers (0 if there are none), by the metric of `dataset`, one of the
/// English LongBench, lsht or our own tiny_*. Few-shot predictions end at their first line. Throws
/// `std::invalid_argument` naming an unknown dataset, or one that needs `all_classes` when they are empty.
double score(std::string_view dataset, std::string_view prediction, std::span<const std::string> answers,
             std::span<const std::string> all_classes);

/// One of LongBench's six: "single-document QA", "multi-document QA", "summarization", "few-shot learning",
/// "synthetic tasks", "code completion". Throws `std::invalid_argument` naming an unknown dataset.
std::string_view category(std::string_view dataset);

/// 100 times the mean of the predictions' scores. Throws `std::invalid_argument` if there are none.
double dataset_score(std::span<const double> scores);

struct DatasetScore {
  std::string dataset;
  double score = 0;  ///< in [0, 100]
};

struct CategoryScore {
  std::string_view category;
  double score = 0;          ///< macro average: the mean of the datasets' scores, in [0, 100]
  std::size_t datasets = 0;  ///< how many there are, at least 1
};

/// The categories that occur, in LongBench's order. Throws `std::invalid_argument` naming an unknown dataset.
std::vector<CategoryScore> category_scores(std::span<const DatasetScore> scores);

}  // namespace llama
