/* The client library: saves and loads memory of the host and of CUDA devices as plain files, and takes what did not
 * change since the last save from that save's file by copy_file_range(2). docs/gpu.md says how it works. It needs no
 * daemon: it works on any file system, and moves no unchanged byte on CairnFS and where files share extents.
 *
 * A stable C ABI. Structs begin with their size, `struct_bytes`, which the caller sets to sizeof: a newer library
 * takes the struct of an older caller. Fields that the caller does not need are 0. Sizes and offsets are in bytes.
 *
 * Errors: a function that can fail returns one of cairnfs_error_code. Where it got a `cairnfs_error` (it may be NULL),
 * the code and a text are there too; the text names what is wrong and which. On success the struct is left as it was.
 *
 * Threads: every function may be called from any thread, but for what is said at each. No function keeps a pointer of
 * its arguments after it returned, unless that is said.
 *
 * Devices: `device` is CAIRNFS_HOST for memory of the host, or the CUDA runtime's number of a device. A `stream` is a
 * cudaStream_t of that device; NULL is the legacy default stream. The library uses the device's primary context, as
 * the CUDA runtime and torch do, and leaves the caller's current device and context as they were. It makes no context
 * on a device that was not named. */
#ifndef CAIRNFS_CLIENT_H_
#define CAIRNFS_CLIENT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAIRNFS_CLIENT_ABI 1
#define CAIRNFS_HOST (-1)
/* Tensors are compared in blocks of this size from their beginning; the last one may be shorter. */
#define CAIRNFS_BLOCK_BYTES 1048576u
/* BLAKE3-256, hash mode: https://github.com/BLAKE3-team/BLAKE3-specs */
#define CAIRNFS_DIGEST_BYTES 32u
#define CAIRNFS_ERROR_TEXT_BYTES 1024u
#define CAIRNFS_BASE_TEXT_BYTES 256u

enum cairnfs_error_code {
  CAIRNFS_OK = 0,
  CAIRNFS_ERROR_INVALID = 1,          /* an argument or a value of a struct; the text says what would be right */
  CAIRNFS_ERROR_POINTER = 2,          /* memory that is not mapped, freed, or not of the device that was named */
  CAIRNFS_ERROR_NOT_FOUND = 3,        /* the file, or the directory of a file to be written, is not there */
  CAIRNFS_ERROR_PERMISSION = 4,       /* of a file or directory; a file system that is read-only */
  CAIRNFS_ERROR_NO_SPACE = 5,         /* the disk, a quota, or the limit on a file's size (RLIMIT_FSIZE) */
  CAIRNFS_ERROR_NO_MEMORY = 6,        /* memory of the host, or memory that can be pinned; threads */
  CAIRNFS_ERROR_NO_DEVICE_MEMORY = 7, /* memory of the device */
  CAIRNFS_ERROR_TRUNCATED = 8,        /* a file ends before the bytes that were asked for */
  CAIRNFS_ERROR_IO = 9,               /* another error of a file */
  CAIRNFS_ERROR_DEVICE = 10,          /* another error of CUDA */
  CAIRNFS_ERROR_NO_DEVICE = 11,       /* a library without CUDA, no driver, or no device of that number */
  CAIRNFS_ERROR_TIMEOUT = 12          /* the time given to a wait is up; nothing else happened */
};
/* Of memory of the host CAIRNFS_ERROR_POINTER also says that it may not be read, or not be written by a load. It is
 * looked up in /proc/self/maps, where there is one, when the call begins. Memory that goes later, and the mapping of a
 * file past the file's end, still end the process by a signal. */

typedef struct cairnfs_error {
  int32_t code;                        /* cairnfs_error_code */
  int32_t system_errno;                /* an errno that says about the same, or 0 */
  char text[CAIRNFS_ERROR_TEXT_BYTES]; /* UTF-8, ends with a NUL; what is too long is cut off */
} cairnfs_error;

/* CAIRNFS_CLIENT_ABI of the library that is loaded. */
int32_t cairnfs_client_abi(void);

/* How the library was built: "host" without CUDA, else "cuda MAJOR.MINOR". Static; not to be freed. */
const char* cairnfs_client_build(void);

/* How many CUDA devices the library can use. 0, and CAIRNFS_OK, for a library without CUDA and where there is no
 * driver. CAIRNFS_ERROR_DEVICE, also where the driver is too old for the library. */
int32_t cairnfs_device_count(int32_t* count, cairnfs_error* error);

/* ---- Saving ---- */

enum cairnfs_snapshot {
  CAIRNFS_SNAPSHOT_NONE = 0,  /* the source is free when its changed bytes have been copied off the device */
  CAIRNFS_SNAPSHOT_DEVICE = 1 /* device tensors are first copied to other memory of their device, which is kept between
                               * saves; where it is not to be had, as CAIRNFS_SNAPSHOT_NONE, and the result says so;
                               * or an error, see needs_snapshot */
};

typedef struct cairnfs_saver_options {
  uint32_t struct_bytes;
  uint32_t writers; /* threads that stage, hash and write; 0: 4, or the number of processors if that is less; <= 256 */
  /* Memory through which bytes pass from the source to the file: pinned once there were tensors on devices. It is
   * kept until the saver is closed. At least 2 blocks. 0: what the device tensors of the largest save so far have, and
   * 64 MiB, but at most a quarter of the memory of the machine, or of the container (control group) if that has less.
   * Several ranks on one machine should set it, since each takes as much. A size that was asked for and cannot be had
   * is CAIRNFS_ERROR_NO_MEMORY at the first save. Host tensors are free as soon as they have been copied there, if it
   * has room for all of them: the whole of it, or half where there are device tensors, which need 2 blocks at least.
   * Else they are free when the save has read and judged the last of them. */
  uint64_t ring_bytes;
  uint32_t copies_in_flight; /* streams per device that copy to the ring; 0: 4; <= 64 */
  uint32_t snapshot;         /* cairnfs_snapshot */
} cairnfs_saver_options;

/* Keeps between saves: the ring, the fingerprints of the last save that succeeded, memory of devices. One saver is for
 * one series of files, each of which is based on the one before; several savers are independent of each other. */
typedef struct cairnfs_saver cairnfs_saver;
/* A save that was started. */
typedef struct cairnfs_save cairnfs_save;

/* `options` may be NULL. On success *saver is the caller's, who closes it. CAIRNFS_ERROR_INVALID. */
int32_t cairnfs_saver_open(const cairnfs_saver_options* options, cairnfs_saver** saver, cairnfs_error* error);
/* Waits until a save that runs has ended, and frees all; NULL is allowed. Handles of saves stay valid. No other call
 * with this saver may run or follow. */
void cairnfs_saver_close(cairnfs_saver* saver);

enum cairnfs_segment_kind {
  CAIRNFS_LITERAL = 0, /* bytes of the file's own: headers. Copied by cairnfs_save_start; never taken from the base */
  CAIRNFS_TENSOR = 1   /* one contiguous array */
};

/* What lies in the file at [offset, offset + bytes). */
typedef struct cairnfs_segment {
  uint64_t offset; /* in the file; see cairnfs_save_request. A multiple of 4096 lets file systems share extents */
  uint64_t bytes;  /* may be 0 */
  const void* data;
  int32_t kind;   /* cairnfs_segment_kind */
  int32_t device; /* of `data`; literals: CAIRNFS_HOST */
  /* Of a tensor: UTF-8, not empty, ends with a NUL, unique in the save. It is what a tensor is known by from save to
   * save: block i of it is compared with block i of the tensor of that name, whatever its shape, dtype and offset. */
  const char* name;
} cairnfs_segment;

typedef struct cairnfs_stream {
  int32_t device;
  int32_t reserved; /* 0 */
  void* stream;     /* cudaStream_t */
} cairnfs_stream;

typedef struct cairnfs_save_request {
  uint32_t struct_bytes;
  uint32_t mode;    /* permission bits of the file, before the umask; 0: those, the group and the access control list of
                     * the file that is replaced, or fewer bits where these cannot be had; else 0666 before the umask */
  const char* path; /* replaced by the rename, if a file or a symbolic link is there; all else is an error */
  /* The file of this saver's last save that succeeded, by any path; or NULL: then every byte is written. */
  const char* base;
  /* The file's size. Segments lie within it and do not overlap; they come in any order. Bytes that no segment covers
   * are zeros. */
  uint64_t file_bytes;
  const cairnfs_segment* segments; /* their memory may overlap: it is only read */
  size_t segment_count;
  /* The stream of each device on which its tensors were made; the library's reading is ordered after what was put on
   * it before the call. Devices that are not named: the legacy default stream. At most one for each device. */
  const cairnfs_stream* streams;
  size_t stream_count;
  /* Not 0: where the saver makes snapshots and the device has no memory for one, this is CAIRNFS_ERROR_NO_DEVICE_MEMORY
   * instead of a save without. */
  uint32_t needs_snapshot;
  uint32_t reserved;
} cairnfs_save_request;

enum cairnfs_base_use {
  CAIRNFS_BASE_NOT_ASKED = 0,       /* `base` was NULL */
  CAIRNFS_BASE_USED = 1,            /* trusted; unchanged blocks, if there were any, came from it */
  CAIRNFS_BASE_NO_FINGERPRINTS = 2, /* the saver has not saved before, or could not be sure of what it saved */
  CAIRNFS_BASE_GONE = 3,            /* no file of that name */
  CAIRNFS_BASE_UNREADABLE = 4,      /* open(2) or reading it failed */
  CAIRNFS_BASE_CHANGED = 5, /* another file than the one saved, or not as it was left; before or while copying */
  CAIRNFS_BASE_OTHER_FILESYSTEM = 6,
  CAIRNFS_BASE_REFUSED = 7 /* copy_file_range failed or came to an early end */
};

typedef struct cairnfs_save_result {
  uint32_t struct_bytes; /* set by the caller before the call */
  uint32_t base_use;     /* cairnfs_base_use. With 2 to 7 every byte was written */
  uint64_t file_bytes;
  uint64_t bytes_written;  /* by write(2), gaps not counted */
  uint64_t bytes_reused;   /* by copy_file_range from the base */
  uint64_t bytes_over_bus; /* between devices and host, in both directions: tensors, tables of blocks, bits */
  uint64_t blocks;         /* of all tensors */
  uint64_t blocks_changed; /* of those; all of them where the base was not used */
  uint64_t source_ns;      /* from the beginning of cairnfs_save_start until the source was free */
  uint64_t durable_ns;     /* ... until the file was durable under its name */
  uint64_t ring_bytes;
  uint32_t snapshot; /* cairnfs_snapshot that was made */
  uint32_t reserved;
  char base_text[CAIRNFS_BASE_TEXT_BYTES]; /* why the base was not used, and which; "" where it was or none was asked */
} cairnfs_save_result;

/* Begins a save: checks the request, waits until the save before of this saver has ended, puts the work of devices on
 * the caller's streams, and returns. The work goes on in threads of the library. The file is written as
 * PATH.tmp-RANDOM, made durable, renamed to PATH, and the directory is made durable; a failure removes it, and leaves
 * what PATH and the base name as it was. Where only the last step fails, the new file is whole under PATH, but may be
 * gone after a crash of the machine; the error says so. After a kill the file may stay under its temporary name, until
 * the next save of that PATH by the same user: those that are being written are locked by flock(2), and others go.
 * Until the source is free (cairnfs_save_wait_source) the memory of tensors must stay and must not change; a host
 * tensor that does change meanwhile gives the file some of its states, and never a wrong fingerprint. One of a device
 * that does may get a fingerprint of other bytes than the file has: then later saves may take wrong bytes from it.
 * Literals, names and arrays of the request are copied.
 * Nobody may write to the base through a shared mapping: such stores change no ctime until they are written back.
 * On success *save is the caller's, who releases it.
 * CAIRNFS_ERROR_INVALID, _POINTER, _NO_MEMORY, _NO_DEVICE_MEMORY, _NO_DEVICE, _DEVICE: nothing was begun. Errors of
 * files come from the waits. */
int32_t cairnfs_save_start(cairnfs_saver* saver, const cairnfs_save_request* request, cairnfs_save** save,
                           cairnfs_error* error);

/* Waits until the memory of all tensors may be changed or freed, for `timeout_ms` at most; negative: without end.
 * Returns CAIRNFS_OK also when the save fails later. When it has failed, the memory is free, and this returns its
 * error. CAIRNFS_ERROR_TIMEOUT. */
int32_t cairnfs_save_wait_source(cairnfs_save* save, int64_t timeout_ms, cairnfs_error* error);

/* Waits until the file is durable under its name, or the save has failed: then returns its error, each time it is
 * asked. `result` may be NULL; it is filled on success. CAIRNFS_ERROR_TIMEOUT. */
int32_t cairnfs_save_wait(cairnfs_save* save, int64_t timeout_ms, cairnfs_save_result* result, cairnfs_error* error);

/* Gives the handle back; NULL is allowed. The save goes on: this neither waits nor stops it. */
void cairnfs_save_release(cairnfs_save* save);

/* ---- Loading ---- */

typedef struct cairnfs_loader_options {
  uint32_t struct_bytes;
  uint32_t readers;    /* threads, with a stream each on each device; 0: 4, or the number of processors if that is less;
                        * <= 256 */
  uint64_t ring_bytes; /* pinned memory for destinations on devices, kept until the loader is closed; at least 2
                        * blocks; 0: 64 MiB */
} cairnfs_loader_options;

typedef struct cairnfs_loader cairnfs_loader;

/* `options` may be NULL. On success *loader is the caller's, who closes it. CAIRNFS_ERROR_INVALID. */
int32_t cairnfs_loader_open(const cairnfs_loader_options* options, cairnfs_loader** loader, cairnfs_error* error);
/* No call with this loader may run or follow. NULL is allowed. */
void cairnfs_loader_close(cairnfs_loader* loader);

/* Bytes [offset, offset + bytes) of the file go to `destination`. Destinations may not overlap each other. */
typedef struct cairnfs_read {
  uint64_t offset;
  uint64_t bytes;
  void* destination;
  int32_t device; /* of `destination` */
  int32_t reserved;
  const char* name; /* for texts of errors; may be NULL */
} cairnfs_read;

typedef struct cairnfs_load_request {
  uint32_t struct_bytes;
  uint32_t reserved;
  const char* path;
  const cairnfs_read* reads;
  size_t read_count;
  /* The library's writing to a device is ordered after what was put on its stream before the call. */
  const cairnfs_stream* streams;
  size_t stream_count;
} cairnfs_load_request;

/* Returns when all bytes are where they belong; work that is put on any stream afterwards sees them. On an error
 * destinations hold anything. Calls with one loader run one after the other.
 * CAIRNFS_ERROR_INVALID, _POINTER, _NOT_FOUND, _PERMISSION, _TRUNCATED, _IO, _NO_MEMORY, _NO_DEVICE, _DEVICE. */
int32_t cairnfs_load(cairnfs_loader* loader, const cairnfs_load_request* request, cairnfs_error* error);

/* ---- Fingerprints ---- */

/* BLAKE3-256 of each block of `data`, computed where it lies, on `stream` where that is a device. `digests`, in memory
 * of the host, gets ceil(bytes / CAIRNFS_BLOCK_BYTES) times CAIRNFS_DIGEST_BYTES bytes, in the order of the blocks;
 * `digests_bytes` is how many it has room for. Returns when they are there. 0 bytes have no block.
 * CAIRNFS_ERROR_INVALID, _POINTER, _NO_DEVICE_MEMORY, _NO_DEVICE, _DEVICE. */
int32_t cairnfs_fingerprint(const void* data, uint64_t bytes, int32_t device, void* stream, uint8_t* digests,
                            uint64_t digests_bytes, cairnfs_error* error);

#ifdef __cplusplus
}
#endif

#endif /* CAIRNFS_CLIENT_H_ */
