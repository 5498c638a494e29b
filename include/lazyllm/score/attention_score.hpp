#pragma once

#include <span>
#include <type_traits>

#include "lazyllm/backend/operations.hpp"
#include "lazyllm/engine/concepts.hpp"
#include "lazyllm/engine/error.hpp"
#include "lazyllm/engine/finite.hpp"
#include "lazyllm/score/token_score.hpp"

namespace lazyllm {

namespace detail {

/// Says at compile time what an attention block lacks to be scored.
template <class Block, class Context>
constexpr void check_scorable() {
  if constexpr (requires { &Block::token_scores; }) {
    static_assert(ScoresTokens<Block, Context>,
                  "lazyllm: `token_scores` of the attention block must be callable as `token_scores(Context&, const "
                  "LayerPlan&, std::span<const ScoreWindow>)`");
  } else if constexpr (!ScoresTokens<Block, Context> && !ExposesQueriesAndKeys<Block>) {
    constexpr bool queries = requires(Block & block, const LayerPlan& plan) { block.queries(plan); };
    constexpr bool keys = requires(Block & block, const LayerPlan& plan, Index s) { block.key_view(plan, s); };
    static_assert(queries || keys,
                  "lazyllm: to be scored, the attention block needs either `token_scores(context, plan, "
                  "windows)`, or `queries(plan)` and `key_view(plan, sequence)`");
    static_assert(queries || !keys, "lazyllm: the attention block has `key_view`, but no `queries(plan)`");
    static_assert(keys || !queries, "lazyllm: the attention block has `queries`, but no `key_view(plan, sequence)`");
    if constexpr (queries && keys) {
      using Keys = std::remove_cvref_t<decltype(std::declval<Block&>().key_view(std::declval<const LayerPlan&>(), 0))>;
      static_assert(std::is_trivially_copyable_v<Keys>, "lazyllm: what `key_view` returns must be trivially copyable");
      static_assert(
          requires { typename Keys::value_type; },
          "lazyllm: what `key_view` returns must name its element type, `value_type`");
      static_assert(
          requires(const Keys& view) { view.kv_heads; },
          "lazyllm: what `key_view` returns must have a member `kv_heads`, the number of key heads");
      if constexpr (requires { typename Keys::value_type; }) {
        static_assert(
            Element<typename Keys::value_type>,
            "lazyllm: the elements of K must be float or a 16-bit floating-point type; the bits of a half in a "
            "uint16_t are lazyllm::Float16; quantised K needs `token_scores`");
        static_assert(
            requires(const Keys& view, Position position, Index head) {
              { view.key(position, head) } -> std::same_as<const typename Keys::value_type*>;
            },
            "lazyllm: `key(position, head)` of what `key_view` returns must be const and return a const value_type*");
      }
      static_assert(!KeyView<Keys>, "lazyllm: `queries(plan)` must return a lazyllm::QueryRows");
    }
  }
}

inline constexpr Index several = 2;  ///< the fewest rows, heads or positions that need a stride

/// Throws `invalid_argument` for heads, a scale or strides that cannot be, for queries of `rows` rows.
template <class T, class Keys>
void check_heads(const QueryRows<T>& queries, const Keys& keys, Index rows) {
  const auto kv_heads = static_cast<Index>(keys.kv_heads);
  if (kv_heads < 1 || queries.heads < 1 || queries.heads % kv_heads != 0) {
    fail("attention scores: ", queries.heads, " query heads on ", kv_heads,
         " key heads: both must be at least 1, the first a multiple of the second");
  }
  if (queries.head_dim < 1) fail("attention scores: head_dim ", queries.head_dim, " is out of range, at least 1");
  if (!(queries.scale > 0) || !is_finite(queries.scale)) {
    fail("attention scores: scale ", queries.scale, " of the queries is out of range: finite and above 0");
  }
  const auto check_stride = [](const char* name, Index stride, Index count) {  // one element needs no stride
    const Index min_stride = count > 1 ? 1 : 0;
    if (stride < min_stride) fail("attention scores: ", name, " ", stride, " is out of range, at least ", min_stride);
  };
  check_stride("row_stride of the queries", queries.row_stride, rows);
  check_stride("head_stride of the queries", queries.head_stride, queries.heads);
  if constexpr (requires { keys.position_stride; }) check_stride("position_stride of K", keys.position_stride, several);
  if constexpr (requires { keys.head_stride; }) check_stride("head_stride of K", keys.head_stride, kv_heads);
  if constexpr (requires { keys.page_stride; }) {
    check_stride("page_stride of K", keys.page_stride, several);
    if (keys.page_size < 1) fail("attention scores: page_size ", keys.page_size, " of K is out of range, at least 1");
  }
}

}  // namespace detail

/// Fills the scores of `windows` with attention probabilities (eq. 1), for a window of several rows reduced over them:
/// by the block itself where it can, else by the backend from its Q and K. Throws `invalid_argument` if query heads are
/// no multiple of key heads, a stride is below 1, or the scale is not above 0.
template <Backend Context, class Block>
void score_by_attention(Context& context, Block& block, const LayerPlan& plan, std::span<const ScoreWindow> windows) {
  detail::check_scorable<Block, Context>();
  if constexpr (ScoresTokens<Block, Context>) {
    block.token_scores(context, plan, windows);
  } else if constexpr (ExposesQueriesAndKeys<Block>) {
    const auto queries = block.queries(plan);
    const bool one_window = windows.size() == 1 && plan.sequences() == 1;
    for (const ScoreWindow& window : windows) {  // rows of other windows and sequences are among the queries
      detail::check_heads(queries, block.key_view(plan, window.sequence), one_window ? window.rows : detail::several);
    }
    attention_scores(context, queries, std::ssize(windows), [&](Index i) {
      const ScoreWindow& window = windows[detail::to_size(i)];
      const SequencePlan part = plan.sequence(window.sequence);
      return ScoreTask<std::remove_cvref_t<decltype(block.key_view(plan, window.sequence))>>{
          .first_row = window.first_row,
          .limits =
              part.key_limits.subspan(detail::to_size(window.first_row - part.first_row), detail::to_size(window.rows)),
          .key_view = block.key_view(plan, window.sequence),
          .keys = part.keys,
          .over_heads = window.over_heads,
          .over_rows = window.over_rows,
          .scores = window.scores};
    });
  }
}

/// How the importance of a token comes from attention probabilities. The default is the paper's eq. 1: the probability
/// from the last token, mean over the query heads. The options are applied in the order in which they are declared.
struct AttentionScore {
  /// Over the query heads of each row. A head that looks for one thing counts as much as all others with `max`.
  Reduce over_heads = Reduce::mean;
  /// Score by the last `last_queries` positions of the sequence instead of the last one alone. Only tokens of this
  /// step's prompt that are still active count. In a decode step these are the new tokens: drafts score, too.
  Index last_queries = 1;
  Reduce over_rows = Reduce::mean;  ///< over the rows of the window
  /// Sum the scores of all layers that have run in this step. This ranks like the running mean: selection does not
  /// depend on a factor. Scores are then computed in all layers up to the last one that ranks.
  bool over_layers = false;
  /// Give a token the highest score among the `pooling` active tokens around it; odd, 1 for none.
  Index pooling = 1;

  /// Whether all options are equal.
  bool operator==(const AttentionScore&) const = default;

  /// Throws `invalid_argument` for an option out of range.
  void check() const {
    if (last_queries < 1) detail::fail("AttentionScore: last_queries ", last_queries, " is out of range, at least 1");
    if (pooling < 1 || pooling % 2 == 0) {
      detail::fail("AttentionScore: pooling ", pooling, " is out of range: odd and at least 1");
    }
  }

  /// Fills the scores of one layer; see `score_by_attention`.
  template <Backend Context, class Block>
  static void score(Context& context, Block& block, const LayerPlan& plan, std::span<const ScoreWindow> windows,
                    std::span<const AttentionScore* const>) {
    score_by_attention(context, block, plan, windows);
  }
};

static_assert(TokenScore<AttentionScore>);

}  // namespace lazyllm
