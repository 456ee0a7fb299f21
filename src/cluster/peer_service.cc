// The peer service of a node: chunk questions go to the chunk store, those about open files to the handler, on
// threads of their own.
#include <algorithm>
#include <random>

#include "base/answer.h"
#include "base/coding.h"
#include "base/context.h"
#include "base/task_queue.h"
#include "cluster/chunk_server.h"
#include "cluster/cluster_chunk_store.h"

namespace cairnfs::cluster {
namespace {

constexpr unsigned kAskThreads = 2;
constexpr unsigned kOrphanThreads = 2;
constexpr std::chrono::milliseconds kRetryPauseMax{400};

constexpr size_t kPlacesMax = 1 << 19;                               // a head has 8 MiB at most
constexpr std::string_view kAskForWritten = "w", kAskForSeal = "s";  // requests of OpenPlaces

Error NobodyAnswers() { return MakeError(ErrorCode::kUnavailable, "no filesystem runs on this node"); }
Error NobodyWaits() { return MakeError(ErrorCode::kInterrupted, "nobody waits for the answer any more"); }

// A handler, and how many calls are in it.
template <typename Handler>
class HandlerSlot {
 public:
  void Set(Handler handler) {
    MutexLock lock(mutex_);
    handler_ = std::move(handler);
    while (calls_ > 0) left_.Wait(mutex_);
  }
  // Empty: there is none now. Else Leave after use.
  Handler Enter() {
    MutexLock lock(mutex_);
    if (handler_) ++calls_;
    return handler_;
  }
  void Leave() {
    MutexLock lock(mutex_);
    if (--calls_ == 0) left_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar left_;
  Handler handler_ GUARDED_BY(mutex_);
  size_t calls_ GUARDED_BY(mutex_) = 0;
};

class PeerServiceImpl final : public PeerService, public Peers {
 public:
  PeerServiceImpl(ChunkServer& chunks, unsigned threads)
      : chunks_(chunks),
        serve_("cairn-serve", std::max(1U, threads), TaskQueue::Priority::kBackground),
        ask_("cairn-ask", kAskThreads),
        orphans_("cairn-orphans", kOrphanThreads) {}

  Status Listen(const PeerService::Options& of_service, Membership& membership) {
    PeerServer::Options options;
    options.listen = of_service.listen;
    options.metadata = of_service.metadata;
    options.tls = of_service.tls;
    options.is_trusted = of_service.is_trusted;
    sign_ = of_service.sign;
    CAIRNFS_ASSIGN_OR_RETURN(
        server_, PeerServer::Start(
                     options, membership, chunks_.wire(),
                     [this](PeerMethod method, const NodeId& caller, PeerMessage request, PeerServer::Respond respond) {
                       Dispatch(method, caller, std::move(request), std::move(respond));
                     }));
    return {};
  }

  ~PeerServiceImpl() override {
    handler_.Set({});
    open_handler_.Set({});
    chunks_.StopHolding();
    server_.reset();
  }

  const std::string& address() const override { return server_->address(); }
  uint64_t refused_total() const override { return server_->refused_total(); }
  Peers& peers() override { return *this; }

  void SetHandler(OrphanHandler handler) override { handler_.Set(std::move(handler)); }
  void SetOpenHandler(OpenHandler handler) override { open_handler_.Set(std::move(handler)); }

  Result<std::vector<bool>> HoldOrphans(const Context& context, const NodeId& node,
                                        const std::vector<InodeId>& inodes) override {
    const PeerMessage request{EncodeInodes(inodes), {}};
    CAIRNFS_ASSIGN_OR_RETURN(PeerMessage reply, CallWithin(context, node, PeerMethod::kHoldOrphans, request));
    auto bits = DecodeBits(reply.head);
    if (!bits || bits->size() != inodes.size()) {
      return MakeError(ErrorCode::kIo, "node " + node.ToHex() + " answered what cannot be decoded");
    }
    return *std::move(bits);
  }

  Result<std::vector<InodeId>> OpenFiles(const Context& context, const NodeId& node, OpenWhat what) override {
    const PeerMessage request{
        std::string(what == OpenWhat::kPlaces ? "" : (what == OpenWhat::kWritten ? kAskForWritten : kAskForSeal)), {}};
    CAIRNFS_ASSIGN_OR_RETURN(PeerMessage reply, CallWithin(context, node, PeerMethod::kOpenPlaces, request));
    auto inodes = DecodeInodes(reply.head);
    if (inodes) return *std::move(inodes);
    return MakeError(ErrorCode::kIo, "node " + node.ToHex() + " answered what cannot be decoded");
  }

  Result<std::string> RequestCertificate(const Context& context, const NodeId& node,
                                         const std::string& request) override {
    CAIRNFS_ASSIGN_OR_RETURN(PeerMessage reply, CallOnce(context, node, PeerMethod::kSign, {request, {}}));
    return std::move(reply.head);
  }

 private:
  void Dispatch(PeerMethod method, const NodeId& caller, PeerMessage request, PeerServer::Respond respond) {
    auto shared = std::make_shared<PeerMessage>(std::move(request));
    if (method == PeerMethod::kHoldOrphans) {
      return orphans_.Post([this, shared, respond] { AskHandler(shared->head, respond); });
    }
    if (method == PeerMethod::kOpenPlaces) {
      return orphans_.Post([this, shared, respond] { TellOpenPlaces(shared->head, respond); });
    }
    if (method == PeerMethod::kSign) {
      return orphans_.Post([this, caller, shared, respond] { Sign(caller, shared->head, respond); });
    }
    // Questions do not wait behind chunks that are being stored.
    TaskQueue& queue = method == PeerMethod::kPut ? serve_ : ask_;
    queue.Post([this, method, caller, shared, respond = std::move(respond)] {
      chunks_.Handle(method, caller, *shared, respond);
    });
  }

  void Sign(const NodeId& caller, std::string_view request, const PeerServer::Respond& respond) {
    if (!sign_) return respond(MakeError(ErrorCode::kNotSupported, "this node does not sign certificates"));
    auto chain = sign_(caller, request);
    if (!chain.ok()) return respond(chain.error());
    respond(PeerMessage{*std::move(chain), {}});
  }

  void AskHandler(std::string_view head, const PeerServer::Respond& respond) {
    auto inodes = DecodeInodes(head);
    if (!inodes) return respond(MakeError(ErrorCode::kInvalidArgument, "the request cannot be decoded"));
    const OrphanHandler handler = handler_.Enter();
    if (!handler) return respond(NobodyAnswers());
    PeerMessage reply;
    reply.head = EncodeBits(handler(*inodes));
    handler_.Leave();
    respond(std::move(reply));
  }

  void TellOpenPlaces(std::string_view head, const PeerServer::Respond& respond) {
    if (!head.empty() && head != kAskForWritten && head != kAskForSeal)
      return respond(MakeError(ErrorCode::kInvalidArgument, "the request cannot be decoded"));
    const OpenHandler handler = open_handler_.Enter();
    if (!handler) return respond(NobodyAnswers());
    const auto inodes = handler(head.empty()          ? OpenWhat::kPlaces
                                : head == kAskForSeal ? OpenWhat::kWrittenForSeal
                                                      : OpenWhat::kWritten);
    open_handler_.Leave();
    if (!inodes.ok()) return respond(inodes.error());
    if (inodes->size() > kPlacesMax) {
      return respond(MakeError(ErrorCode::kTooLarge, "it has files open in more directories than it can tell"));
    }
    respond(PeerMessage{EncodeInodes(*inodes), {}});
  }

  // The question may be asked again: until the deadline, with pauses that differ from host to host.
  Result<PeerMessage> CallWithin(const Context& context, const NodeId& node, PeerMethod method,
                                 const PeerMessage& request) {
    static thread_local std::minstd_rand random(std::random_device{}());
    for (;;) {
      if (context.IsLate()) {
        return MakeError(ErrorCode::kUnavailable, "node " + node.ToHex() + " did not answer in time");
      }
      Result<PeerMessage> reply = CallOnce(context, node, method, request);
      const auto pause = kRetryPauseMax / 4 + std::chrono::milliseconds(random() % (kRetryPauseMax.count() * 3 / 4));
      if (reply.ok() || (reply.error().code != ErrorCode::kUnavailable && reply.error().code != ErrorCode::kBusy)) {
        return reply;
      }
      if (!context.Sleep(pause)) return context.IsStopped() ? NobodyWaits() : reply;
    }
  }

  // Where the context is stopped first, what comes later is an answer to nobody.
  Result<PeerMessage> CallOnce(const Context& context, const NodeId& node, PeerMethod method,
                               const PeerMessage& request) {
    const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(context.deadline() - Clock::Now());
    auto answer = std::make_shared<Answer<Result<PeerMessage>>>();
    chunks_.client().Call(node, method, request, timeout,
                          [answer](Result<PeerMessage> reply) { answer->Set(std::move(reply)); });
    // The call itself ends at the deadline.
    if (answer->Wait(context.WithoutDeadline())) return answer->Take();
    return NobodyWaits();
  }

  ChunkServer& chunks_;
  std::function<Result<std::string>(const NodeId& node, std::string_view request)> sign_;
  HandlerSlot<OrphanHandler> handler_;
  HandlerSlot<OpenHandler> open_handler_;
  std::unique_ptr<PeerServer> server_;
  TaskQueue serve_;  // chunks to store; these may wait for the disk, and never for another node
  TaskQueue ask_;    // who has chunks, and to read them; the same
  TaskQueue orphans_;
};

}  // namespace

Result<std::unique_ptr<PeerService>> PeerService::Start(const Options& options, ClusterChunkStore& chunks,
                                                        Membership& membership) {
  auto service = std::make_unique<PeerServiceImpl>(chunks.peer(), options.threads);
  CAIRNFS_RETURN_IF_ERROR(service->Listen(options, membership));
  return std::unique_ptr<PeerService>(std::move(service));
}

}  // namespace cairnfs::cluster
