// Chooses operations. The choice depends on the seed and on what stands in the plain directory, never on the mount.
#pragma once

#include <string>
#include <vector>

#include "../support/random.h"
#include "operation.h"
#include "world.h"

namespace cairnfs::testing {

class Generator {
 public:
  Generator(uint64_t seed, const World& plain);
  Operation Next();
  // Reads the plain tree anew before the next choice.
  void Forget() { steps_until_scan_ = 0; }

 private:
  void Scan();
  void ScanBelow(const std::string& path, int depth);
  Kind PickKind();
  void Fill(Operation& operation);
  void FillOpen(Operation& operation);
  void FillSlots(Operation& operation);
  void FillRange(Operation& operation);
  void FillRename(Operation& operation);
  void FillAttributes(Operation& operation);
  void AlignForDirect(Operation& operation);

  std::string NewPath();
  std::string AnyPath();
  std::string FilePath();
  std::string DirectoryPath();
  std::string PickFrom(const std::vector<std::string>& known);
  int PickSlot(bool want_regular);
  int FlagsOfSlot(int slot) const;
  uint64_t PickOffset(uint64_t size);
  uint64_t PickLength();
  uint64_t SizeOf(const Operation& operation) const;

  Random random_;
  const World& plain_;
  unsigned weight_sum_ = 0;
  unsigned steps_until_scan_ = 0;
  std::vector<std::string> files_, directories_, empty_, links_, with_xattrs_, all_;
};

}  // namespace cairnfs::testing
