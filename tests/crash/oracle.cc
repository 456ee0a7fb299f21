#include "oracle.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "content_model.h"

namespace cairnfs::testing {
namespace {

constexpr int64_t kDurableByItselfNs = 5000000000LL;
constexpr size_t kViolationsMax = 10;

// Why a byte must be there.
struct Reason {
  size_t index = 0;  // the last data record that is promised; records before it are too
  bool promised = false;
  // Set when the promise hangs on a namespace operation that was taken for a survivor.
  bool by_name = false;
  size_t writer = 0, name_index = 0;
  std::string text;
};

class Judgement {
 public:
  Judgement(const std::vector<Writer>& writers, const CrashPoint& crash, const std::string& root)
      : writers_(writers), crash_(crash), root_(root) {
    for (const Writer& writer : writers_) {
      for (const Record& record : writer.track) {
        if (record.is_sync_point && crash_.Returned(record)) last_sync_ = std::max(last_sync_, record.begin);
      }
    }
  }

  Verdict Run() {
    if (FindCandidates() && FitTogether()) {
      // A state may occur twice in a history. Take the latest, and go back only when its promises do not hold.
      for (;;) {
        std::optional<Reason> hanging;
        std::vector<std::string> found = JudgeContents(hanging);
        if (found.empty()) break;
        std::vector<std::vector<size_t>> saved = candidates_;
        if (hanging && LowerBelow(hanging->writer, hanging->name_index) && FitTogether()) continue;
        candidates_ = saved;
        verdict_.violations.insert(verdict_.violations.end(), found.begin(), found.end());
        break;
      }
    }
    return std::move(verdict_);
  }

 private:
  bool IsDurable(const Record& record) const {
    if (!crash_.Returned(record)) return false;
    return record.end < last_sync_ || record.is_sync_point || IsOld(record.end_time_ns);
  }
  // Whether what was done then is durable by itself.
  bool IsOld(int64_t time_ns) const { return time_ns + kDurableByItselfNs + crash_.stalled_ns <= crash_.time_ns; }

  // For each writer: the counts of records after which the names were what they are now.
  bool FindCandidates() {
    for (const Writer& writer : writers_) {
      TreeLines found = ReadTree(root_ + "/" + writer.name);
      size_t least = 0, began = 0;
      for (size_t i = 0; i < writer.track.size(); ++i) {
        const Record& record = writer.track[i];
        if (!crash_.Began(record)) break;
        began = i + 1;
        if (IsName(record.step) && IsDurable(record)) least = i + 1;
      }
      std::vector<size_t> candidates;
      TreeModel model;
      TreeLines at_least;
      for (size_t count = 0; count <= began; ++count) {
        bool changed = count > 0 && IsName(writer.track[count - 1].step);
        if (changed) model.Apply(writer.track[count - 1]);
        if (count == least) at_least = model.Lines();
        if (count >= least && (changed || count == least) && model.Lines() == found) candidates.push_back(count);
      }
      verdict_.names_checked += found.size();
      verdict_.records_lost += began - (candidates.empty() ? least : candidates.back());
      if (candidates.empty()) {
        std::string last = least == 0 ? "the beginning" : writer.track[least - 1].Describe();
        Violate(fmt::format(
            "{}: the names equal no state from record {} ({}) to record {} of its history."
            "\n    Against the state that is promised at least:{}\n    Against the last one:{}",
            writer.name, least, last, began, Difference(at_least, found), Difference(model.Lines(), found)));
      }
      candidates_.push_back(candidates);
      least_.push_back(least);
    }
    return verdict_.violations.empty();
  }

  // The index of the first lost name of `other` that returned before `record` began, if there is one.
  std::optional<size_t> LostBefore(size_t other, const Record& record) const {
    const Track& track = writers_[other].track;
    for (size_t i = candidates_[other].back(); i < track.size(); ++i) {
      if (!crash_.Returned(track[i]) || track[i].end > record.begin) break;
      if (IsName(track[i].step)) return i;
    }
    return std::nullopt;
  }

  bool FitTogether() {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t w = 0; w < writers_.size(); ++w) {
        for (size_t i = 0; i < candidates_[w].back(); ++i) {
          const Record& record = writers_[w].track[i];
          if (!IsName(record.step)) continue;
          for (size_t v = 0; v < writers_.size() && !changed; ++v) {
            auto lost = v == w ? std::nullopt : LostBefore(v, record);
            if (!lost) continue;
            changed = true;
            if (LowerBelow(w, i)) continue;
            Violate(fmt::format(
                "order: {}'s record {} survived ({}), but {}'s record {} did not, which returned before "
                "it began ({})",
                writers_[w].name, i, record.Describe(), writers_[v].name, *lost, writers_[v].track[*lost].Describe()));
            return false;
          }
          if (changed) break;
        }
      }
    }
    return true;
  }

  // Gives up the candidates in which record `index` survived. False when none is left.
  bool LowerBelow(size_t writer, size_t index) {
    std::vector<size_t> rest;
    for (size_t count : candidates_[writer]) {
      if (count <= index) rest.push_back(count);
    }
    if (rest.empty()) return false;
    candidates_[writer] = rest;
    return true;
  }

  std::vector<std::string> JudgeContents(std::optional<Reason>& hanging) {
    std::vector<std::string> found;
    last_name_ = 0;
    for (size_t w = 0; w < writers_.size(); ++w) {
      for (size_t i = 0; i < candidates_[w].back(); ++i) {
        const Record& record = writers_[w].track[i];
        if (IsName(record.step) && record.begin > last_name_) {
          last_name_ = record.begin;
          last_name_writer_ = w;
          last_name_index_ = i;
        }
      }
    }
    for (size_t w = 0; w < writers_.size(); ++w) {
      TreeModel model;
      for (size_t i = 0; i < candidates_[w].back(); ++i) {
        if (IsName(writers_[w].track[i].step)) model.Apply(writers_[w].track[i]);
      }
      for (const auto& [path, file] : model.Files()) {
        Reason reason = PromiseOf(w, file);
        std::string problem = JudgeFile(writers_[w], path, file, reason);
        if (problem.empty()) continue;
        if (reason.by_name && !hanging) hanging = reason;
        if (found.size() < kViolationsMax) found.push_back(problem);
      }
    }
    return found;
  }

  // How much of a file's data must be there.
  Reason PromiseOf(size_t w, int file) const {
    const Track& track = writers_[w].track;
    Reason reason;
    uint64_t closed = 0;  // order of the first close after the record
    int64_t closed_time = 0;
    size_t renamed = 0;  // a surviving rename of the file after the record
    for (size_t i = track.size(); i-- > 0;) {
      const Record& record = track[i];
      if (record.file != file) continue;
      if (record.step == Step::kClose && crash_.Returned(record)) {
        closed = record.end;
        closed_time = record.end_time_ns;
      }
      if (record.step == Step::kRenameFile && i < candidates_[w].back()) renamed = i;
      if (!IsData(record.step) || !crash_.Returned(record)) continue;
      reason.index = i;
      reason.promised = true;
      if (record.end < last_sync_ || record.is_sync_point) {
        reason.text = "a sync point returned after it";
      } else if (closed != 0 && IsOld(closed_time)) {
        reason.text = "it was closed more than 5 s before the crash";
      } else if (closed != 0 && closed < last_name_) {
        reason.by_name = true;
        reason.writer = last_name_writer_;
        reason.name_index = last_name_index_;
        reason.text =
            fmt::format("it was closed before an operation that survived ({}: {})", writers_[reason.writer].name,
                        writers_[reason.writer].track[reason.name_index].Describe());
      } else if (renamed != 0 && renamed > i) {
        reason.by_name = true;
        reason.writer = w;
        reason.name_index = renamed;
        reason.text = "its file was renamed after it, and the rename survived";
      } else {
        continue;
      }
      return reason;
    }
    return Reason();
  }

  std::string JudgeFile(const Writer& writer, const std::string& path, int file, const Reason& reason) {
    std::string full = root_ + "/" + writer.name + "/" + path;
    std::string found;
    if (std::string error = ReadAll(full, found); !error.empty()) return fmt::format("{}: {}", full, error);
    ++verdict_.files_checked;
    verdict_.bytes_checked += found.size();
    std::string content;
    std::vector<bool> good;  // by byte of `found`; empty: all of it
    uint64_t size_min = 0, size_max = 0;
    bool based = !reason.promised;
    auto compare = [&](bool first) {
      size_min = first ? content.size() : std::min<uint64_t>(size_min, content.size());
      size_max = first ? content.size() : std::max<uint64_t>(size_max, content.size());
      size_t common = std::min(content.size(), found.size());
      if (first && content.size() == found.size() && std::memcmp(content.data(), found.data(), common) == 0)
        return true;
      if (first) good.assign(found.size(), false);
      for (size_t i = 0; i < common; ++i) good[i] = good[i] || content[i] == found[i];
      return false;
    };
    bool whole = based && compare(true);
    for (size_t i = 0; i < writer.track.size() && !whole; ++i) {
      const Record& record = writer.track[i];
      if (record.file != file || !IsData(record.step) || !crash_.Began(record)) continue;
      ApplyData(record, content);
      if (based) {
        compare(false);
      } else if (i == reason.index) {
        based = true;
        whole = compare(true);
      }
    }
    if (whole) return "";
    if (found.size() < size_min || found.size() > size_max) {
      return fmt::format("{}: {} bytes long, must be {} to {}; {}", full, found.size(), size_min, size_max,
                         Why(writer, reason));
    }
    size_t bad = std::find(good.begin(), good.end(), false) - good.begin();
    if (bad == good.size()) return "";
    size_t count = std::count(good.begin(), good.end(), false);
    return fmt::format("{}: {} bytes of {} are neither the promised ones nor later ones, the first at {}: {:#04x}; {}",
                       full, count, found.size(), bad, static_cast<unsigned char>(found[bad]), Why(writer, reason));
  }

  static std::string Why(const Writer& writer, const Reason& reason) {
    if (!reason.promised) return "nothing of it was promised";
    return fmt::format("promised: {}, because {}", writer.track[reason.index].Describe(), reason.text);
  }

  static std::string ReadAll(const std::string& path, std::string& bytes) {
    int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fmt::format("cannot be opened: {}", strerror(errno));
    struct stat info;
    fstat(fd, &info);
    bytes.resize(info.st_size);
    size_t done = 0;
    std::string error;
    while (done < bytes.size()) {
      ssize_t count = pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
      if (count <= 0) {
        error = fmt::format("cannot be read at {} of {}: {}", done, bytes.size(), count < 0 ? strerror(errno) : "ends");
        break;
      }
      done += count;
    }
    close(fd);
    return error;
  }

  void Violate(const std::string& text) {
    if (verdict_.violations.size() < kViolationsMax) verdict_.violations.push_back(text);
  }

  const std::vector<Writer>& writers_;
  const CrashPoint& crash_;
  const std::string& root_;
  uint64_t last_sync_ = 0;  // beginning of the last sync point that returned
  uint64_t last_name_ = 0;  // beginning of the last namespace operation that survived
  size_t last_name_writer_ = 0, last_name_index_ = 0;
  std::vector<std::vector<size_t>> candidates_;
  std::vector<size_t> least_;
  Verdict verdict_;
};

}  // namespace

Verdict Judge(const std::vector<Writer>& writers, const CrashPoint& crash, const std::string& root) {
  return Judgement(writers, crash, root).Run();
}

}  // namespace cairnfs::testing
