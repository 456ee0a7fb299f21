// What the model test does not compare, because CairnFS and ext4 differ there by design. Nothing else is left out.
//
// - st_nlink of a directory: 1 here (asserted), on ext4 2 and its subdirectories.
// - st_size of a directory, st_blocks, st_blksize, st_ino, st_dev: each its own; that an inode number survives a rename
//   is compared. st_atime: compared when it was set explicitly.
// - SEEK_DATA, SEEK_HOLE: extents here, blocks of 4 KiB there: compared are the errno, and that what is called a hole
//   reads as zeros.
// - O_TMPFILE: EOPNOTSUPP here (asserted, where the directory may be written), works there.
// - Order of readdir: compared sorted. user.cairnfs.* xattrs: not asked for. Xattrs of one inode have no small limit in
//   sum here, and one block there: few and small ones only.
// - Largest file: past 16 TiB here, 16 TiB there: offsets below 1 TiB, and near 2^63 (EFBIG or EINVAL).
// - Alignment under O_DIRECT: none needed here, 512 bytes there: aligned on both.
// - Most links of a file: each its own; not reached. statfs: f_namelen and sanity only.
// - chown(-1, -1) by another user of a file with set-id bits: 0 here, EPERM there; not tried. The kernel does not tell
// a
//   FUSE filesystem such a chown from the taking away of the bits by a write.
// - Stores through a shared mapping take set-id bits away here: not made into files that have some.
// - A full disk: not tried here; tests of their own are.
#pragma once

namespace cairnfs::testing {

constexpr unsigned long kNotCompared = 0;
constexpr unsigned long long kLargestOffset = 1ULL << 40;

}  // namespace cairnfs::testing
