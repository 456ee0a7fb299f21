#include "kvnet/names_service.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "kvnet/channel.h"
#include "names.grpc.pb.h"
#include "rpc/status.h"
#include "rpc/tls.h"

namespace cairnfs::kvnet {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kVoteWait{1'000}, kCopyWait{20'000};

void Fill(proto::BallotMessage& message, const kv::Ballot& ballot) {
  message.set_number(ballot.number);
  message.set_node(ballot.node);
}
kv::Ballot BallotOf(const proto::BallotMessage& message) { return {message.number(), message.node()}; }

void Fill(proto::PositionMessage& message, const kv::Position& position) {
  message.set_opening(position.opening);
  message.set_revision(position.revision);
}
kv::Position PositionOf(const proto::PositionMessage& message) { return {message.opening(), message.revision()}; }

void Fill(proto::VoteReply& message, const kv::VoteReply& reply) {
  message.set_is_granted(reply.is_granted);
  message.set_vote(reply.vote.Encode());
  message.set_leader(reply.leader);
  message.set_lease_left_ms(static_cast<uint64_t>(reply.lease_left.count()));
  message.set_heard_revision(reply.heard_revision);
}
Result<kv::VoteReply> VoteReplyOf(const proto::VoteReply& message) {
  kv::VoteReply reply;
  reply.is_granted = message.is_granted();
  CAIRNFS_ASSIGN_OR_RETURN(reply.vote, kv::Vote::Decode(message.vote()));
  reply.leader = message.leader();
  reply.lease_left = milliseconds(message.lease_left_ms());
  reply.heard_revision = message.heard_revision();
  return reply;
}

void Fill(proto::LogEntryMessage& message, const kv::LogEntry& entry) {
  Fill(*message.mutable_before(), entry.before);
  Fill(*message.mutable_after(), entry.after);
  for (const kv::EngineWrite& write : entry.writes) {
    proto::EngineWriteMessage& to = *message.add_writes();
    to.set_key(write.key);
    if (write.value) to.set_value(*write.value);
  }
}
kv::LogEntry LogEntryOf(const proto::LogEntryMessage& message) {
  kv::LogEntry entry{PositionOf(message.before()), PositionOf(message.after()), {}};
  for (const proto::EngineWriteMessage& write : message.writes()) {
    entry.writes.push_back({write.key(), write.has_value() ? std::optional(write.value()) : std::nullopt});
  }
  return entry;
}

// A primary writes nothing of what each host keeps for itself.
bool IsOfNames(const proto::AppendRequest& request) {
  for (const proto::LogEntryMessage& entry : request.entries()) {
    for (const proto::EngineWriteMessage& write : entry.writes()) {
      if (write.key() >= kv::kNamesEnd) return false;
    }
  }
  return true;
}

kv::CopyPiece PieceOf(const proto::CopyRequest& request) {
  kv::CopyPiece piece{request.copy(), request.number(), request.begin(), request.end(), {}};
  for (const proto::EngineWriteMessage& entry : request.entries())
    piece.entries.emplace_back(entry.key(), entry.value());
  return piece;
}

}  // namespace

class NamesService::Impl final : public proto::Names::Service {
 public:
  Impl(kv::NamesHost& host, Admit admit) : host_(host), admit_(std::move(admit)) {}

  grpc::Status Prepare(grpc::ServerContext* context, const proto::PrepareRequest* request,
                       proto::VoteReply* reply) override {
    if (Status may = MayCall(*context, *request); !may.ok()) return rpc::ToGrpc(may.error());
    return Answer(host_.voter().Prepare({}, BallotOf(request->ballot())), reply);
  }
  grpc::Status Accept(grpc::ServerContext* context, const proto::AcceptRequest* request,
                      proto::VoteReply* reply) override {
    if (Status may = MayCall(*context, *request); !may.ok()) return rpc::ToGrpc(may.error());
    const Result<kv::Register> value = kv::Register::Decode(request->value());
    if (!value.ok()) return rpc::ToGrpc(InvalidArgument(value.error().message));
    return Answer(host_.voter().Accept({}, BallotOf(request->ballot()), *value, request->revision()), reply);
  }
  grpc::Status Append(grpc::ServerContext* context, const proto::AppendRequest* request,
                      proto::AppendReply* reply) override {
    if (Status may = MayCall(*context, *request); !may.ok()) return rpc::ToGrpc(may.error());
    if (!IsOfNames(*request)) return rpc::ToGrpc(InvalidArgument("a key that is none of the names"));
    std::vector<kv::LogEntry> entries;
    for (const proto::LogEntryMessage& entry : request->entries()) entries.push_back(LogEntryOf(entry));
    const Result<kv::Position> position = host_.follower().Append({}, BallotOf(request->ballot()), entries);
    if (!position.ok()) return rpc::ToGrpc(position.error());
    Fill(*reply->mutable_position(), *position);
    return grpc::Status::OK;
  }
  grpc::Status Copy(grpc::ServerContext* context, const proto::CopyRequest* request, proto::CopyReply*) override {
    if (Status may = MayCall(*context, *request); !may.ok()) return rpc::ToGrpc(may.error());
    const Status copied = host_.follower().Copy({}, BallotOf(request->ballot()), PieceOf(*request));
    return copied.ok() ? grpc::Status::OK : rpc::ToGrpc(copied.error());
  }
  grpc::Status Describe(grpc::ServerContext* context, const proto::DescribeRequest*,
                        proto::DescribeReply* reply) override {
    if (const auto caller = admit_(*context); !caller.ok()) return rpc::ToGrpc(caller.error());
    const kv::NamesHost::Description description = host_.Describe();
    reply->set_node(description.self.node);
    reply->set_address(description.self.address);
    reply->set_vote(description.vote.Encode());
    reply->set_is_serving(description.is_serving);
    Fill(*reply->mutable_position(), description.position);
    Fill(*reply->mutable_follower(), description.follower);
    return grpc::Status::OK;
  }

 private:
  // Whether it is of the node that proposes, and for this one.
  Status MayCall(const grpc::ServerContextBase& call, const auto& request) const {
    CAIRNFS_ASSIGN_OR_RETURN(const std::string caller, admit_(call));
    const std::string& self = host_.self().node;
    if (request.to() != self) {
      return MakeError(ErrorCode::kNotFound, "this is node " + self + ", not " + request.to());
    }
    const std::string& proposer = request.ballot().node();
    if (proposer.empty()) return {};  // it only asks
    if (!caller.empty() && caller != proposer) {
      return MakeError(ErrorCode::kPermission, "node " + caller + " calls as node " + proposer);
    }
    // Only a primary names other voters, and it is one of those before.
    const kv::Vote vote = host_.voter().vote();
    if (!vote.value || vote.value->HasVoter(proposer)) return {};
    return MakeError(ErrorCode::kPermission, "node " + proposer + " is none of the three that keep the names");
  }
  static grpc::Status Answer(const Result<kv::VoteReply>& answer, proto::VoteReply* reply) {
    if (!answer.ok()) return rpc::ToGrpc(answer.error());
    Fill(*reply, *answer);
    return grpc::Status::OK;
  }

  kv::NamesHost& host_;
  const Admit admit_;
};

NamesService::NamesService(kv::NamesHost& host, Admit admit) : impl_(std::make_unique<Impl>(host, std::move(admit))) {}
NamesService::~NamesService() = default;
grpc::Service& NamesService::service() { return *impl_; }

namespace {

class RemoteNamesImpl final : public RemoteNames {
 public:
  RemoteNamesImpl(kv::Member member, RemoteOptions options)
      : member_(std::move(member)),
        options_(std::move(options)),
        channel_(MakeChannel(member_.address, options_)),
        stub_(proto::Names::NewStub(channel_)) {}

  Result<kv::VoteReply> Prepare(const Context& context, const kv::Ballot& ballot) override {
    proto::PrepareRequest request;
    proto::VoteReply reply;
    CAIRNFS_RETURN_IF_ERROR(Call(context, kVoteWait, ballot, request, reply, &proto::Names::Stub::Prepare));
    return VoteReplyOf(reply);
  }
  Result<kv::VoteReply> Accept(const Context& context, const kv::Ballot& ballot, const kv::Register& value,
                               uint64_t revision) override {
    proto::AcceptRequest request;
    request.set_value(value.Encode());
    request.set_revision(revision);
    proto::VoteReply reply;
    CAIRNFS_RETURN_IF_ERROR(Call(context, kVoteWait, ballot, request, reply, &proto::Names::Stub::Accept));
    return VoteReplyOf(reply);
  }
  Result<kv::Position> Append(const Context& context, const kv::Ballot& ballot,
                              const std::vector<kv::LogEntry>& entries) override {
    proto::AppendRequest request;
    for (const kv::LogEntry& entry : entries) Fill(*request.add_entries(), entry);
    proto::AppendReply reply;
    CAIRNFS_RETURN_IF_ERROR(Call(context, kCopyWait, ballot, request, reply, &proto::Names::Stub::Append));
    return PositionOf(reply.position());
  }
  Status Copy(const Context& context, const kv::Ballot& ballot, const kv::CopyPiece& piece) override {
    proto::CopyRequest request;
    request.set_copy(piece.copy);
    request.set_number(piece.number);
    request.set_begin(piece.begin);
    request.set_end(piece.end);
    for (const auto& [key, value] : piece.entries) {
      proto::EngineWriteMessage& entry = *request.add_entries();
      entry.set_key(key);
      entry.set_value(value);
    }
    proto::CopyReply reply;
    return Call(context, kCopyWait, ballot, request, reply, &proto::Names::Stub::Copy);
  }

 private:
  template <typename Request, typename Reply>
  Status Call(const Context& context, milliseconds timeout, const kv::Ballot& ballot, Request& request, Reply& reply,
              grpc::Status (proto::Names::Stub::*method)(grpc::ClientContext*, const Request&, Reply*)) {
    request.set_to(member_.node);
    Fill(*request.mutable_ballot(), ballot);
    const grpc::Status status = TryCall(context, *channel_, options_, timeout, [&](grpc::ClientContext& call) {
      return (stub_.get()->*method)(&call, request, &reply);
    });
    if (status.ok()) return {};
    return rpc::FromGrpc(status).WithContext("the host at " + member_.address);
  }

  const kv::Member member_;
  const RemoteOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<proto::Names::Stub> stub_;  // self-synchronised
};

}  // namespace

std::shared_ptr<RemoteNames> RemoteNames::To(const kv::Member& member, const RemoteOptions& options) {
  return std::make_shared<RemoteNamesImpl>(member, OptionsOf(options, member.node));
}

Result<kv::NamesHost::Description> DescribeNames(const Context& context, const std::string& address,
                                                 const RemoteOptions& options, milliseconds timeout) {
  const auto channel = MakeChannel(address, options);
  const auto stub = proto::Names::NewStub(channel);
  proto::DescribeReply reply;
  const grpc::Status status = TryCall(context, *channel, options, timeout,
                                      [&](grpc::ClientContext& call) { return stub->Describe(&call, {}, &reply); });
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return MakeError(ErrorCode::kNotSupported,
                     "the host at " + address + " serves names of its own alone: its metadata names no three hosts");
  }
  if (!status.ok()) return rpc::FromGrpc(status).WithContext("the host at " + address);
  kv::NamesHost::Description description;
  description.self = {reply.node(), reply.address()};
  CAIRNFS_ASSIGN_OR_RETURN(description.vote, kv::Vote::Decode(reply.vote()));
  description.is_serving = reply.is_serving();
  description.position = PositionOf(reply.position());
  description.follower = PositionOf(reply.follower());
  return description;
}

}  // namespace cairnfs::kvnet
