// Reads of an etcd cluster, page by page at one revision.
#include <algorithm>

#include "kvnet/etcd_store_impl.h"

namespace cairnfs::kvnet {

namespace pb = etcdserverpb;

constexpr int64_t kPageKeys = 2048;

pb::RangeRequest EtcdStoreImpl::PageOf(const Span& span, size_t have, uint64_t revision) {
  pb::RangeRequest request;
  request.set_key(span.key);
  request.set_range_end(span.range_end);
  int64_t limit = kPageKeys;
  if (span.limit != 0) limit = std::min(limit, static_cast<int64_t>(std::min<size_t>(span.limit - have, kPageKeys)));
  request.set_limit(limit);
  request.set_revision(static_cast<int64_t>(revision));
  return request;
}

bool EtcdStoreImpl::Take(const Span& span, pb::RangeResponse& page, kv::KvRange& range) const {
  for (pb::KeyValue& entry : *page.mutable_kvs()) range.entries.push_back(ToEntry(keys_, std::move(entry)));
  const bool is_full = span.limit != 0 && range.entries.size() >= span.limit;
  range.more = page.more() && is_full;
  return page.more() && !is_full && page.kvs_size() != 0;
}

Status EtcdStoreImpl::ReadPages(const Context& context, const Span& span, uint64_t revision, kv::KvRange& range) {
  for (;;) {
    Span rest = span;
    rest.key = keys_.Key(range.entries.back().key) + '\0';
    const pb::RangeRequest request = PageOf(rest, range.entries.size(), revision);
    pb::RangeResponse page;
    CAIRNFS_RETURN_IF_ERROR(TryLong(context, [&](EtcdEndpoint& endpoint, grpc::ClientContext& call) {
      return endpoint.kv->Range(&call, request, &page);
    }));
    if (!Take(span, page, range)) return {};
  }
}

Result<pb::TxnResponse> EtcdStoreImpl::ReadFirstPages(const Context& context, std::span<const Span> spans,
                                                      uint64_t revision) {
  pb::TxnRequest request;
  for (const Span& span : spans) *request.add_success()->mutable_request_range() = PageOf(span, 0, revision);
  pb::TxnResponse response;
  CAIRNFS_RETURN_IF_ERROR(TryLong(context, [&](EtcdEndpoint& endpoint, grpc::ClientContext& call) {
    return endpoint.kv->Txn(&call, request, &response);
  }));
  if (response.responses_size() == static_cast<int>(spans.size())) return response;
  return MakeError(ErrorCode::kIo, "etcd answers what it was not asked");
}

Result<kv::KvSnapshot> EtcdStoreImpl::ReadSpansOnce(const Context& context, const std::vector<Span>& spans) {
  kv::KvSnapshot snapshot;
  std::vector<size_t> unfinished;
  size_t next = 0;
  do {
    const size_t count = std::min(spans.size() - next, kEtcdOperationsMax);
    CAIRNFS_ASSIGN_OR_RETURN(pb::TxnResponse response,
                             ReadFirstPages(context, std::span(spans).subspan(next, count), snapshot.revision));
    // The later parts are read at the revision of the first.
    if (next == 0) snapshot.revision = static_cast<uint64_t>(response.header().revision());
    for (size_t i = 0; i < count; ++i) {
      const bool goes_on =
          Take(spans[next + i], *response.mutable_responses(static_cast<int>(i))->mutable_response_range(),
               snapshot.ranges.emplace_back());
      if (goes_on) unfinished.push_back(next + i);
    }
    next += count;
  } while (next < spans.size());
  for (size_t i : unfinished) {
    CAIRNFS_RETURN_IF_ERROR(ReadPages(context, spans[i], snapshot.revision, snapshot.ranges[i]));
  }
  for (kv::KvRange& range : snapshot.ranges) range.revision = snapshot.revision;
  return snapshot;
}

Result<kv::KvSnapshot> EtcdStoreImpl::ReadSpans(const Context& context, const std::vector<Span>& spans) {
  kv::Retry retry(context, options_.retry);
  for (;;) {
    Result<kv::KvSnapshot> snapshot = ReadSpansOnce(retry.context(), spans);
    if (snapshot.ok() || snapshot.error().code != ErrorCode::kStale || !retry.Wait()) return snapshot;
  }
}

Result<std::optional<kv::KvEntry>> EtcdStoreImpl::Get(const Context& context, std::string_view key) {
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, ReadSpans(context, {Span{keys_.Key(key), "", 0}}));
  std::vector<kv::KvEntry>& entries = snapshot.ranges[0].entries;
  if (entries.empty()) return std::optional<kv::KvEntry>();
  return std::optional<kv::KvEntry>(std::move(entries[0]));
}

Result<kv::KvRange> EtcdStoreImpl::Range(const Context& context, std::string_view begin, std::string_view end,
                                         size_t limit) {
  // etcd answers a range that ends before it begins with nothing, but takes an end of one zero byte for "all".
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot,
                           ReadSpans(context, {Span{keys_.Key(begin), keys_.RangeEnd(end), limit}}));
  return std::move(snapshot.ranges[0]);
}

Result<uint64_t> EtcdStoreImpl::VisitDurable(const Context& context, std::string_view begin, std::string_view end,
                                             const EntryVisitor& visit) {
  Span rest{keys_.Key(begin), keys_.RangeEnd(end), 0};
  for (uint64_t revision = 0;;) {
    const pb::RangeRequest request = PageOf(rest, 0, revision);
    pb::RangeResponse page;
    const Status read = TryLong(context, [&](EtcdEndpoint& endpoint, grpc::ClientContext& call) {
      return endpoint.kv->Range(&call, request, &page);
    });
    if (!read.ok() && read.error().code == ErrorCode::kStale) {
      return read.error().WithContext("etcd has compacted the state that was being read; call again");
    }
    CAIRNFS_RETURN_IF_ERROR(read);
    if (revision == 0) revision = static_cast<uint64_t>(page.header().revision());
    kv::KvRange range;
    const bool goes_on = Take(rest, page, range);
    for (const kv::KvEntry& entry : range.entries) {
      if (!visit({entry.key, entry.value, entry.revision})) return revision;
    }
    if (!goes_on) return revision;
    rest.key = keys_.Key(range.entries.back().key) + '\0';
  }
}

Result<kv::KvSnapshot> EtcdStoreImpl::Read(const Context& context, std::span<const kv::KvSpan> spans) {
  std::vector<Span> converted;
  for (const kv::KvSpan& span : spans) {
    converted.push_back(Span{keys_.Key(span.begin), span.end.empty() ? "" : keys_.Key(span.end), span.limit});
  }
  return ReadSpans(context, converted);
}

// Commits.

}  // namespace cairnfs::kvnet
