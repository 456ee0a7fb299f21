#include "fs/calls.h"

#include <utility>

namespace cairnfs::fs {
namespace {

constexpr unsigned kStoreThreads = 32;
constexpr unsigned kRoundThreads = 32;

void PostOn(BlockingCalls& calls, const Caller& caller, std::function<void()> task, Done<void> refused) {
  calls.Post(caller.context, std::move(task), [refused = std::move(refused)](const Error& why) { refused(why); });
}

}  // namespace

SharedCalls::SharedCalls()
    : for_store_("cairn-blocking", kStoreThreads), for_rounds_("cairn-roundwait", kRoundThreads) {}

void SharedCalls::Run(const Caller& caller, std::function<void()> task, Done<void> refused) {
  PostOn(for_store_, caller, std::move(task), std::move(refused));
}

void SharedCalls::RunToWait(const Caller& caller, std::function<void()> task, Done<void> refused) {
  PostOn(for_rounds_, caller, std::move(task), std::move(refused));
}

void SharedCalls::Stop() {
  for_store_.Stop();
  for_rounds_.Stop();
}

}  // namespace cairnfs::fs
