// PeerQueues: what each peer is to be asked, told and sent about chunks, and when the next message may go. Not
// thread-safe.
//
// A chunk waits once at most in each queue of a peer, so these are bounded by the pending chunks. Updates of who holds
// a chunk have a bound of their own.
#pragma once

#include <array>
#include <deque>
#include <unordered_map>
#include <vector>

#include "cluster/busy_pause.h"
#include "cluster/chunk_copies.h"

namespace cairnfs::cluster {

// kHas asks the home, kHeldHas in a call that it holds back.
enum class Question { kHas, kHeldHas, kConfirm };

class PeerQueues {
 public:
  // A chunk, or (`chunk` null) only the update of who holds it.
  struct Item {
    ChunkPtr chunk;
    Digest digest;
    Holders holders;
  };
  // A message, and chunks that must be loaded before they can be sent.
  struct Message {
    std::vector<Item> items;
    std::vector<Item> to_load;
    size_t bytes = 0;
  };
  enum class Pace { kNow, kAfterWriters };  // whether programs that write go first

  // `window_bytes`: chunk bytes on their way to one peer, or being loaded to be sent there.
  explicit PeerQueues(size_t window_bytes) : window_bytes_(window_bytes) {}

  void Ask(const NodeId& node, Question question, const ChunkPtr& chunk);
  void Send(const NodeId& node, const ChunkPtr& chunk);
  // Returns how many items wait for the peer. Beyond a bound the update is dropped: see TakeUpdatesDropped.
  size_t Tell(const NodeId& node, const Digest& digest, const Holders& holders);
  // Whether updates were dropped since the last call: repair tells who holds what.
  bool TakeUpdatesDropped() { return std::exchange(updates_dropped_, false); }

  // The chunks of the next question, which is under way then; empty: none may go now.
  std::vector<ChunkPtr> TakeQuestion(const NodeId& node, Question question, Clock::time_point now, Pace pace);
  enum class Reply { kAnswered, kBusy, kFailed };
  // After kBusy the chunks wait again.
  void OnReply(const NodeId& node, Question question, Reply reply, const std::vector<ChunkPtr>& chunks,
               Clock::time_point now);
  // All that waits to be asked about at a home that does not answer.
  std::vector<ChunkPtr> TakeUnasked(const NodeId& node);

  // The next message, which is under way then where it has items; else none may go now.
  Message TakeMessage(const NodeId& node, Clock::time_point now, Pace pace);
  // What was not answered waits again, before what came later: see TakeUnsent.
  void OnSent(const NodeId& node, Reply reply, Message& message, Clock::time_point now);
  // An item of Message::to_load: its bytes are there, and it is the next. Or they are not.
  void OnLoaded(const NodeId& node, Item item);
  void OnLoadFailed(const NodeId& node, const Item& item);
  // An update comes before those that came later.
  void TellFirst(const NodeId& node, Item update);
  // All that waits to be sent to a peer that does not answer.
  std::deque<Item> TakeUnsent(const NodeId& node);

  // Peers for which something waits that may go now.
  std::vector<NodeId> Ready(Clock::time_point now) const;
  // Whether writers put something off that would have gone; since the start.
  uint64_t put_off() const { return put_off_; }

 private:
  struct Asked {
    std::deque<ChunkPtr> queue;
    unsigned running = 0;
  };
  struct Peer {
    std::array<Asked, 3> asked;  // by Question
    std::deque<Item> sends;
    size_t updates = 0;  // of `sends`
    unsigned sends_running = 0;
    size_t window = 0;
    Clock::time_point quiet_until{};  // for chunks: it does not answer
    BusyPause sends_busy, asks_busy;

    bool MaySend(Clock::time_point now) const { return now >= quiet_until && sends_busy.MaySend(now, sends_running); }
  };
  static bool FillsMessage(const Peer& peer);
  Asked& Of(const NodeId& node, Question question) { return peers_[node].asked[static_cast<size_t>(question)]; }

  const size_t window_bytes_;
  std::unordered_map<NodeId, Peer, NodeIdHash> peers_;
  bool updates_dropped_ = false;
  uint64_t put_off_ = 0;
};

}  // namespace cairnfs::cluster
