#pragma once

#include <vector>

#include "lazyllm/engine/positions.hpp"

namespace lazyllm {

/// Token counts of one layer in one step, summed over the sequences of the batch.
struct LayerStats {
  Index active = 0;    ///< tokens that could be attended to
  Index computed = 0;  ///< rows that ran through the layer
  Index revived = 0;   ///< of these, rows that came out of the Aux Cache for this layer; waiting ones count, see below
  Index kept = 0;      ///< tokens that stayed active for the next layer; those that wait there are not among them
};

/// What one step did. Rows of a prompt in chunks, or cut by `max_rows`, wait in the Aux Cache, too: they count as
/// parked and, where they go on, as revived, though nothing has pruned them.
struct StepStats {
  std::vector<LayerStats> layers;  ///< one entry per layer
  Index aux_rows = 0;              ///< rows parked after the step, all sequences of the batch
  Index aux_bytes = 0;             ///< bytes of these rows

  Index computed() const { return sum(&LayerStats::computed); }  ///< (token, layer) pairs computed
  Index revived() const { return sum(&LayerStats::revived); }    ///< rows taken out of the Aux Cache

 private:
  Index sum(Index LayerStats::*count) const {
    Index total = 0;
    for (const LayerStats& layer : layers) total += layer.*count;
    return total;
  }
};

}  // namespace lazyllm
