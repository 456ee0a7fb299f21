// Stores that pass all on to another one: tests override what is to go otherwise.
#pragma once

#include <memory>
#include <utility>

#include "kv/shared_store.h"

namespace cairnfs {

// `Store`: kv::KvStore, or a kind of it whose other functions the test's class has.
template <typename Store>
class PassingOn : public Store {
 public:
  explicit PassingOn(Store& inner) : inner_(inner) {}  // outlives it

  Result<std::optional<kv::KvEntry>> Get(const Context& context, std::string_view key) override {
    return inner_.Get(context, key);
  }
  Result<kv::KvRange> Range(const Context& context, std::string_view begin, std::string_view end,
                            size_t limit) override {
    return inner_.Range(context, begin, end, limit);
  }
  Result<kv::KvSnapshot> Read(const Context& context, std::span<const kv::KvSpan> spans) override {
    return inner_.Read(context, spans);
  }
  Result<uint64_t> Commit(const Context& context, const kv::Transaction& transaction) override {
    return inner_.Commit(context, transaction);
  }
  Status Sync(const Context& context) override { return inner_.Sync(context); }
  kv::KvLimits limits() const override { return inner_.limits(); }

 protected:
  Store& inner_;
};

class PassingStore : public PassingOn<kv::SharedKvStore> {
 public:
  using PassingOn::PassingOn;

  Result<kv::LeaseId> GrantLease(const Context& context, std::chrono::milliseconds ttl) override {
    return inner_.GrantLease(context, ttl);
  }
  Result<std::chrono::milliseconds> KeepLeaseAlive(const Context& context, kv::LeaseId lease) override {
    return inner_.KeepLeaseAlive(context, lease);
  }
  Status RevokeLease(const Context& context, kv::LeaseId lease) override { return inner_.RevokeLease(context, lease); }
  Result<std::unique_ptr<kv::KvWatch>> Watch(const Context& context, std::string_view begin, std::string_view end,
                                             uint64_t after_revision, kv::WatchCallbacks callbacks) override {
    return inner_.Watch(context, begin, end, after_revision, std::move(callbacks));
  }
};

}  // namespace cairnfs
