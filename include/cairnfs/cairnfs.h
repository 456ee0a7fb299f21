/* What a program may rely on when it works with a CairnFS mount: the names and values of its extended attributes, and
 * its ioctls, and the exit codes of cairnfs and cairnfsd. Plain C, no library: the calls are those of POSIX.
 * docs/operating.md says more. Names here keep their meaning from version to version; new ones may come. */
#ifndef CAIRNFS_CAIRNFS_H_
#define CAIRNFS_CAIRNFS_H_

#include <stdint.h>
#include <sys/ioctl.h>

/* All attributes that CairnFS answers itself begin with this. They can be read with getxattr(2), by everybody who can
 * open the path; listxattr(2) does not name them, so no copy has them; setting or removing one gives EPERM, but for
 * CAIRNFS_XATTR_LEVEL, those of retention and those of files that appear whole, which are stored. */
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

/* Of a directory that a rename has published: what is known of that commit, as JSON. docs/commits.md has the keys.
 * Others: ENODATA. */
#define CAIRNFS_XATTR_COMMIT CAIRNFS_XATTR_PREFIX "commit"
/* Of a directory whose rename was refused because bytes below it are lost or could not be made safe: the last time, as
 * JSON; docs/commits.md has the keys. It is answered, not stored. Others: ENODATA. */
#define CAIRNFS_XATTR_REFUSED CAIRNFS_XATTR_PREFIX "refused"

/* Retention (docs/commits.md, "What stays"). All are of directories other than the root of the filesystem. Only the
 * owner of the directory and root may set or remove them: others get EPERM, and a value that is wrong EINVAL.
 * Of the directory of a run: which of its checkpoints stay, as JSON; docs/commits.md has the keys. */
#define CAIRNFS_XATTR_RETAIN CAIRNFS_XATTR_PREFIX "retain"
/* Of a checkpoint, "1": retention does not remove it. */
#define CAIRNFS_XATTR_PINNED CAIRNFS_XATTR_PREFIX "pinned"
/* Of a checkpoint: retention does not remove it before this time, in whole seconds since 1970. Setting an earlier one
 * gives EEXIST; removing the attribute ends the hold. */
#define CAIRNFS_XATTR_HELD_UNTIL CAIRNFS_XATTR_PREFIX "held_until"
/* Of a checkpoint, followed by the name of a metric: its value, a finite number as text. */
#define CAIRNFS_XATTR_METRIC_PREFIX CAIRNFS_XATTR_PREFIX "metric."
/* Of a checkpoint, the name that retention gave it, and after a slash each pattern of what stays in it: its removal has
 * begun. It cannot be renamed, pinned or held any more, its record of a commit is gone, and whoever finds it goes on.
 * EBUSY: it is pinned or held. ENOENT: it does not have that name. What stays of it has its own name again, and this:
 * it is no checkpoint until its owner or root removes the attribute. */
#define CAIRNFS_XATTR_REMOVING CAIRNFS_XATTR_PREFIX "removing"
/* Of a directory, for its owner and root to set and remove: "1": nothing below it can be changed (EROFS); "at-commit":
 * its next rename seals it; "commits": each directory that is renamed into it is sealed by that. Also answers "sealing"
 * and, for what lies below, "below". EBUSY: a process has a file below open for writing, or another
 * host is yet to publish bytes of one. */
#define CAIRNFS_XATTR_SEALED CAIRNFS_XATTR_PREFIX "sealed"
/* Of a directory, for its owner and root: the path of a directory below it, or of itself, that is sealed. It is
 * answered, not stored. ENODATA: there is none. */
#define CAIRNFS_XATTR_SEALED_INSIDE CAIRNFS_XATTR_PREFIX "sealed_inside"
/* Of a directory, for its owner and root: a line for each file below it that a process has open for writing, a few of
 * many. It is answered, not stored. */
#define CAIRNFS_XATTR_WRITERS CAIRNFS_XATTR_PREFIX "writers"
/* Of the directory of a run, for its owner and root: when its policy was last applied by itself, and what came of that,
 * as JSON; docs/commits.md has the keys. It is answered, not stored. ENODATA: it was not yet. */
#define CAIRNFS_XATTR_RETAINED CAIRNFS_XATTR_PREFIX "retained"
/* Of a directory: how many of the files below it processes have open, as a decimal number, those of another host in one
 * directory counted as one; only for its owner and root, others get EPERM. ETIMEDOUT: a host does not say. It is
 * answered, not stored. */
#define CAIRNFS_XATTR_OPEN_FILES CAIRNFS_XATTR_PREFIX "open_files"
/* To be read, of a file or directory: the quota that it falls under, as JSON (docs/operating.md, "Quotas"). ENODATA: it
 * falls under none. */
#define CAIRNFS_XATTR_QUOTA CAIRNFS_XATTR_PREFIX "quota"

#define CAIRNFS_DURABILITY_PENDING "pending" /* accepted, not durable yet; fsync(2) or `cairnfs wait` waits for it */
#define CAIRNFS_DURABILITY_LOCAL "local"     /* durable on this host's disk */
#define CAIRNFS_DURABILITY_REPLICATED "replicated" /* durable on as many nodes of the cluster as were asked for */
#define CAIRNFS_DURABILITY_LOST "lost"             /* accepted bytes could not be stored, or their host died before */

/* Files that appear whole (docs/commits.md). Both are of directories, count for all below them for which no directory
 * in between has its own, and may be set and removed by the owner of the directory and root: others get EPERM, and a
 * value that is wrong EINVAL. Patterns of names, as the shell has them, with blanks between them: a file of such a name
 * that is made or emptied by open(2) is seen under that name by nobody but its writer until that one has closed it.
 * Empty: no names. */
#define CAIRNFS_XATTR_ATOMIC_FILES CAIRNFS_XATTR_PREFIX "atomic_files"
/* "1": such a file whose format says that it is cut short (zip, safetensors) does not get the name, and close(2) gives
 * EIO. "0": it does. */
#define CAIRNFS_XATTR_ATOMIC_COMPLETE CAIRNFS_XATTR_PREFIX "atomic_complete"

/* Deferred commits (docs/commits.md). ioctl(2) on a descriptor of the directory that is to be renamed, opened for
 * reading: what is below it becomes durable, then it gets its final name, with the rights that the caller has at this
 * call. Returns 0 with a ticket at once, and does not wait for other commits, as `cairnfs commit --async` does. Names
 * and rights are checked as by that. EBUSY: it is under way already; or `under_way_max` tickets of this user are, into
 * the directory of the final name, or too many of all users: call again when one has ended. EEXIST, ENOTEMPTY: the
 * final name is there, or is its name already. EPERM: the caller may not rename it, or the mount is read-only. ENOTDIR,
 * ENAMETOOLONG, ENOENT. EINVAL: a field is wrong, or the final name lies below the directory. EINTR: the caller is
 * being killed. ENOTTY: no CairnFS, or one that does not know it. */
struct cairnfs_defer_commit {
  uint64_t ticket;        /* out; cairnfs commit --wait takes it as 16 hexadecimal digits */
  uint64_t final_parent;  /* st_ino of the directory of the final name, in the same mount; 0: where it lies now */
  uint32_t under_way_max; /* 1 to 64 */
  uint32_t reserved;      /* 0 */
  char final_name[256];   /* with a NUL at its end */
};
#define CAIRNFS_IOC_DEFER_COMMIT _IOWR(0xC7, 1, struct cairnfs_defer_commit)

/* What has become of a ticket; ioctl(2) on a descriptor of any directory of the filesystem, on any host. Waits for no
 * commit. One that has ended is told once, durably, to the user who took the ticket and to root. ENOENT: there is no
 * such ticket, or none any more. EPERM: it is another user's. EINVAL: `reserved` is not 0. */
struct cairnfs_commit_result {
  uint64_t ticket;
  uint32_t state;    /* out: one of CAIRNFS_COMMIT_... */
  uint32_t reserved; /* 0 */
  char reason[512];  /* out: why it failed, with a NUL at its end; cut off where it is longer */
};
#define CAIRNFS_IOC_COMMIT_RESULT _IOWR(0xC7, 2, struct cairnfs_commit_result)
#define CAIRNFS_COMMIT_UNDER_WAY 0U
#define CAIRNFS_COMMIT_DONE 1U
#define CAIRNFS_COMMIT_FAILED 2U

/* Exit codes of cairnfs and cairnfsd. (mount.cairnfs has those of mount(8).) */
enum cairnfs_exit_code {
  CAIRNFS_EXIT_DONE = 0,
  CAIRNFS_EXIT_FAILED = 1, /* the operation failed, or its output could not be written; the message says why */
  /* Wrong command line or configuration; `cluster status`, `cluster set` and `node` on a host that is alone; what
   * `metadata` names, or `cluster join` was sent to, answers and serves none; `node drain`, `remove` and `replace`,
   * `metadata standby` and `promote` where the cluster does not allow it (docs/operating.md).
   * Of a start also: the configuration cannot be read; the mount point is missing, no directory or not empty; the data
   * directory or the log file lies in the mount point, or has no directory to lie in; the limit on open files is too
   * low. */
  CAIRNFS_EXIT_USAGE = 2,
  /* No CairnFS there, no daemon that answers, no /dev/fuse; the metadata of the cluster does not answer; `listen`,
   * `serve_metadata` or `serve_join` cannot be listened on; no host lets others join; `log_file` is "journal" and there
   * is no journal. */
  CAIRNFS_EXIT_NO_DAEMON = 3,
  CAIRNFS_EXIT_PROBLEMS = 4, /* `cairnfs check` found problems, other than what it repaired */
  /* In use: the data directory, the mount point, files in the mount (to a remount with `ro`: for writing); a check runs
   * already; `gc` where collections are held up; `node remove` and `replace` of a node that is up; a quota that another
   * host changes, or that is being taken off; a user's share of this host's ranks commits; a directory whose deferred
   * commit is under way, or too many are; `commit --wait --timeout` of one that is under way still; `seal` of a
   * directory below which somebody writes. */
  CAIRNFS_EXIT_BUSY = 5,
  /* Not allowed; a certificate that has ended or may be read by others; a node that was removed; an unknown token. */
  CAIRNFS_EXIT_PERMISSION = 6,
  /* The data directory is damaged, or of a newer format. */
  CAIRNFS_EXIT_CORRUPT = 7,
  /* `latest` found no whole checkpoint, `retain` no policy, `commit --wait` no such ticket, `trash` no such entry, or
   * the directory that it lay in is removed. */
  CAIRNFS_EXIT_NONE = 8,
  /* The time of `umount --deadline`, `drain --deadline` or `stop_deadline` was up before everything was durable; the
   * stop of `umount --deadline` failed, or a file that appears whole was open still; `drain` found bytes that are lost.
   */
  CAIRNFS_EXIT_LOST = 9
};

#endif /* CAIRNFS_CAIRNFS_H_ */
