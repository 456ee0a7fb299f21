// RocksDB's write-ahead logs, laid out so that a sync is one wait for the disk.
//
// A file that grows has its new size in the file system's journal, so an fdatasync of an appended log waits for two
// writes. Here zeros stand ahead of what is written, and most syncs find their place. RocksDB's own reader cannot be
// given such a file: it steps over zeros in search of a later record, and so over what a power cut lost. So each piece
// that RocksDB appends is a record with a checksum, and a reader ends at the first place that holds none. The layout is
// in docs/formats/kv.md, the reasons in docs/decisions/sync-rounds.md.
#pragma once

namespace rocksdb {
class Env;
}

namespace cairnfs::kv {

// RocksDB's default Env, but for files named *.log, which are written and read as above; logs that were written without
// it are read as they are. Lives as long as the process. Any thread.
rocksdb::Env* LogEnv();

}  // namespace cairnfs::kv
