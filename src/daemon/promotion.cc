#include "daemon/promotion.h"

#include <chrono>
#include <filesystem>
#include <utility>

#include "admission/credentials.h"
#include "base/clock.h"
#include "base/context.h"
#include "daemon/data_directory.h"
#include "kvnet/names_service.h"

namespace cairnfs::daemon {
namespace {

constexpr std::chrono::seconds kPromotionWait{30};

// Where the other hosts find this node, as it was told when it became one of three.
Result<kv::Member> OwnMember(kv::KvEngine& engine, const std::string& node) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto voter, kv::LocalVoter::Open(engine));
  const kv::Vote vote = voter->vote();
  if (vote.value) {
    for (const kv::Member& member : vote.value->voters) {
      if (member.node == node) return member;
    }
  }
  return InvalidArgument("this host is not the standby of the names: nobody was ever told of one");
}

}  // namespace

control::PromoteReply ReplyOf(const kv::NamesHost::Promotion& promotion) {
  control::PromoteReply reply;
  reply.set_was_primary(promotion.was_primary);
  reply.set_was_whole(promotion.was_whole);
  reply.set_detached_seconds(static_cast<uint64_t>(promotion.detached_seconds));
  reply.set_own_revision(promotion.own_revision);
  reply.set_known_revision(promotion.known_revision);
  return reply;
}

Result<control::PromoteReply> PromoteOffline(const Config& config, bool may_lose) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto directory, DataDirectory::Open({config.data, false, "promoting"}));
  std::error_code error;
  if (!std::filesystem::exists(directory->shared_path(), error)) {
    return InvalidArgument("this host is not the standby of the names: it has none");
  }
  kv::RocksOptions files;
  files.path = directory->shared_path();
  files.create_if_missing = false;
  CAIRNFS_ASSIGN_OR_RETURN(const auto engine, kv::OpenRocksEngine(files));
  kvnet::RemoteOptions calls;
  const std::string folder = admission::Credentials::FolderOf(directory->path());
  auto credentials = admission::Credentials::Open(folder, directory->uuid(), Clock::WallTime());
  // Without certificates the other hosts know this one by its network.
  if (!credentials.ok() && credentials.error().code != ErrorCode::kNotFound) return credentials.error();
  if (credentials.ok()) calls.tls = (*credentials)->tls();
  kv::NamesHost::Options options;
  CAIRNFS_ASSIGN_OR_RETURN(options.self, OwnMember(*engine, directory->uuid()));
  options.reach = [&calls](const kv::Member& member) {
    const auto names = kvnet::RemoteNames::To(member, calls);
    return kv::NamesHost::Options::Remote{names, names};
  };
  CAIRNFS_ASSIGN_OR_RETURN(const auto host, kv::NamesHost::Open(*engine, std::move(options)));
  CAIRNFS_ASSIGN_OR_RETURN(const kv::NamesHost::Promotion promotion,
                           host->Promote(Context().WithTimeout(kPromotionWait), may_lose));
  return ReplyOf(promotion);
}

}  // namespace cairnfs::daemon
