/* What a program may rely on when it works with a CairnFS mount: the names and values of its extended attributes, and
 * the exit codes of cairnfs and cairnfsd. Plain C, no library: the calls are those of POSIX. docs/operating.md says
 * more. Names here keep their meaning from version to version; new ones may come. */
#ifndef CAIRNFS_CAIRNFS_H_
#define CAIRNFS_CAIRNFS_H_

/* All attributes that CairnFS answers itself begin with this. They can be read with getxattr(2), by everybody who can
 * open the path; listxattr(2) does not name them; setting or removing one gives EPERM, but for CAIRNFS_XATTR_LEVEL. */
#define CAIRNFS_XATTR_PREFIX "user.cairnfs."

/* How safe a path is, as text without a final NUL: one of CAIRNFS_DURABILITY_... below. A file stands for its bytes,
 * its attributes and its names; a directory for all that is below it. */
#define CAIRNFS_XATTR_DURABILITY CAIRNFS_XATTR_PREFIX "durability"
/* At which level a path becomes durable: CAIRNFS_DURABILITY_LOCAL or CAIRNFS_DURABILITY_REPLICATED. In a cluster it can
 * be set for a directory, by who may write to it, and counts for all below it for which no directory in between has one
 * of its own; removing it gives the directory that of the one above it, in the end of the mount. */
#define CAIRNFS_XATTR_LEVEL CAIRNFS_XATTR_PREFIX "level"
/* Of a regular file: how many bytes its distinct chunks take, and how many of those there are; decimal numbers as text
 * without a final NUL. Other files: ENODATA. */
#define CAIRNFS_XATTR_UNIQUE_BYTES CAIRNFS_XATTR_PREFIX "unique_bytes"
#define CAIRNFS_XATTR_CHUNKS CAIRNFS_XATTR_PREFIX "chunks"

#define CAIRNFS_DURABILITY_PENDING "pending" /* accepted, not durable yet; fsync(2) or `cairnfs wait` waits for it */
#define CAIRNFS_DURABILITY_LOCAL "local"     /* durable on this host's disk */
#define CAIRNFS_DURABILITY_REPLICATED "replicated" /* durable on as many nodes of the cluster as were asked for */
#define CAIRNFS_DURABILITY_LOST "lost"             /* accepted bytes could not be stored, or their host died before */

/* Exit codes of cairnfs and cairnfsd. (mount.cairnfs has those of mount(8).) */
enum cairnfs_exit_code {
  CAIRNFS_EXIT_DONE = 0,
  CAIRNFS_EXIT_FAILED = 1, /* the operation failed; the message says why */
  /* Wrong command line or configuration; `cluster status`, `cluster set` and `node` on a host that is alone; what
   * `metadata` names, or `cluster join` was sent to, answers and serves none.
   * Of a start also: the configuration cannot be read; the mount point is missing, no directory or not empty; the data
   * directory or the log file lies in the mount point, or has no directory to lie in; the limit on open files is too
   * low. */
  CAIRNFS_EXIT_USAGE = 2,
  /* No CairnFS there, no daemon that answers, no /dev/fuse; the metadata of the cluster does not answer; `listen` or
   * `serve_metadata` cannot be listened on; `log_file` is "journal" and there is no journal. */
  CAIRNFS_EXIT_NO_DAEMON = 3,
  CAIRNFS_EXIT_PROBLEMS = 4, /* `cairnfs check` found problems, other than what it repaired */
  /* In use: the data directory, the mount point, files in the mount (to a remount with `ro`: for writing); a check runs
   * already; `gc` in a cluster; `node forget` of a node that is up; a user's share of this host's ranks commits. */
  CAIRNFS_EXIT_BUSY = 5,
  CAIRNFS_EXIT_PERMISSION = 6, /* not allowed */
  /* The data directory is damaged, or of a newer format. */
  CAIRNFS_EXIT_CORRUPT = 7
};

#endif /* CAIRNFS_CAIRNFS_H_ */
