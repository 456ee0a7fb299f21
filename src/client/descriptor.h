// A file descriptor that is closed at the end of its scope.
#pragma once

#include <unistd.h>

namespace cairnfs::client {

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  int number() const { return number_; }  // negative: could not be opened

 private:
  const int number_;
};

}  // namespace cairnfs::client
