// A process of another user that commits as a rank.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "control/client.h"
#include "only_rank.h"

namespace cairnfs::control {

// What a rank of that user is answered: nothing, or the message of its error. It is made before gRPC has threads here,
// which a fork would not take along.
class Rank {
 public:
  Rank(std::string socket, uid_t uid) {
    if (pipe(ask_) != 0 || pipe(answer_) != 0) abort();
    child_ = fork();
    if (child_ != 0) return;
    close(ask_[1]);  // with the test that ends, so does this
    if (setgid(uid) != 0 || setuid(uid) != 0) _exit(1);
    InodeId directory;
    while (read(ask_[0], &directory.value, sizeof directory.value) == sizeof directory.value) {
      Client client(socket);
      Status status = client.Commit(CallOfTheOnlyRank(directory), [] { return Status(); });
      std::string text = status.ok() ? "" : status.error().message;
      if (status.ok() && client.GetStatus({}).ok()) text = "it was told the daemon's status";
      text.resize(1000);
      if (write(answer_[1], text.data(), text.size()) != 1000) break;
    }
    _exit(0);
  }
  ~Rank() {
    close(ask_[1]);
    waitpid(child_, nullptr, 0);
    for (int fd : {ask_[0], answer_[0], answer_[1]}) close(fd);
  }
  std::string Commit(InodeId directory) {
    std::string text(1000, '\0');
    if (write(ask_[1], &directory.value, sizeof directory.value) != sizeof directory.value) return "it is gone";
    for (size_t done = 0; done < text.size();) {
      const ssize_t got = read(answer_[0], text.data() + done, text.size() - done);
      if (got <= 0) return "it is gone";
      done += static_cast<size_t>(got);
    }
    return text.c_str();
  }

 private:
  int ask_[2], answer_[2];
  pid_t child_ = 0;
};

}  // namespace cairnfs::control
