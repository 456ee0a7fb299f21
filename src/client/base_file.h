// The file of the save before, from which unchanged bytes are taken.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cairnfs/client.h"
#include "client/file_identity.h"

namespace cairnfs::client {

// Why a base is not used.
struct BaseProblem {
  cairnfs_base_use use;
  std::string text;
};

class BaseFile {
 public:
  struct Opened {
    std::unique_ptr<BaseFile> file;  // null: there is a problem
    BaseProblem problem;
  };
  // `saved` is what was seen of the file that the fingerprints are of; `device` the st_dev of the file to be written.
  static Opened Open(const std::string& path, const FileIdentity& saved, uint64_t device);
  ~BaseFile();
  BaseFile(const BaseFile&) = delete;

  // Whether the file is still what it was. Any thread.
  std::optional<BaseProblem> Check() const;
  // [from, from + bytes) to `to` of the file `descriptor`. After a problem some of it may be there. Any thread.
  std::optional<BaseProblem> Copy(uint64_t from, int descriptor, uint64_t to, uint64_t bytes) const;

 private:
  BaseFile(std::string path, const FileIdentity& saved) : path_(std::move(path)), saved_(saved) {}
  const std::string path_;
  int descriptor_ = -1;
  const FileIdentity saved_;
};

}  // namespace cairnfs::client
