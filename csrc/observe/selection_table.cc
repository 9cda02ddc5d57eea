#include "observe/selection_table.h"

#include <bit>

namespace theseus {

void SelectionTable::note(Collective collective, uint64_t bytes, const Choice& choice, uint64_t request) {
  const auto size_class = static_cast<uint32_t>(std::bit_width(bytes | 1) - 1);
  std::unique_ptr<Place>& place = places_[static_cast<size_t>(collective)][size_class];
  if (place != nullptr && place->tag == choice.tag && place->row.may_share == choice.may_share) return;
  const std::lock_guard lock(mutex_);
  const bool fresh = place == nullptr;
  if (fresh) place = std::make_unique<Place>();
  place->tag = choice.tag;
  SelectionRow& row = place->row;
  // One schedule has a tag for each root.
  if (fresh || row.schedule != choice.schedule || row.origin != choice.origin) {
    row.since = request;
    row.schedule = choice.schedule;
    row.origin = choice.origin;
  }
  row.collective = collective;
  row.size_class = size_class;
  row.may_share = choice.may_share;
}

std::vector<SelectionRow> SelectionTable::rows() const {
  const std::lock_guard lock(mutex_);
  std::vector<SelectionRow> found;
  for (const auto& classes : places_) {
    for (const std::unique_ptr<Place>& place : classes) {
      if (place != nullptr) found.push_back(place->row);
    }
  }
  return found;
}

}  // namespace theseus
