#!/bin/bash
# One save on a real mount with the daemon in the foreground, so that a sanitizer's report and exit code are seen:
# writes, commits by a rename, reads back, mounts again, reads again, deletes, collects, checks.
set -euo pipefail
bin=${CAIRNFS_BIN_DIR:?names the folder with cairnfs and cairnfsd}
work=$(realpath "$(mktemp -d "${TMPDIR:-/var/tmp}/cairnfs-save.XXXXXX")")
daemon=
clean_up() {
  set +e
  [[ -n $daemon ]] && kill -9 "$daemon" 2>/dev/null
  umount -l "$work/mnt" 2>/dev/null
  rm -rf "$work"
}
trap clean_up EXIT
mkdir "$work/mnt" "$work/source"

start() {
  "$bin/cairnfsd" "$work/mnt" --data "$work/data" -o pool_size=64MiB >>"$work/log" 2>&1 &
  daemon=$!
  for _ in $(seq 600); do
    mountpoint -q "$work/mnt" && "$bin/cairnfs" status "$work/mnt" >/dev/null 2>&1 && return
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.2
  done
  cat "$work/log"
  echo "FAILED: the mount did not come up"
  exit 1
}
stop() {
  local code=0
  "$bin/cairnfs" umount "$work/mnt"
  wait "$daemon" || code=$?
  daemon=
  if ((code != 0)) || grep -qE 'Sanitizer|runtime error' "$work/log"; then
    cat "$work/log"
    echo "FAILED: the daemon ended with $code"
    exit 1
  fi
}

head -c 24M /dev/urandom >"$work/source/weights"
head -c 3000000 /dev/zero >"$work/source/zeros"
for i in $(seq 40); do echo "small $i" >"$work/source/small-$i"; done

start
mkdir "$work/mnt/step-1.tmp"
cp "$work"/source/* "$work/mnt/step-1.tmp/" &
copy=$!
cp -r "$work/source" "$work/mnt/other"
wait "$copy"
sync "$work/mnt/step-1.tmp/weights"
mv "$work/mnt/step-1.tmp" "$work/mnt/step-1"
diff -r "$work/source" "$work/mnt/step-1"
stop

start
diff -r "$work/source" "$work/mnt/step-1"
diff -r "$work/source" "$work/mnt/other"
dd if="$work/source/weights" of="$work/mnt/step-1/weights" bs=777 count=3000 skip=5 seek=9 conv=notrunc status=none
rm -r "$work/mnt/other"
"$bin/cairnfs" wait "$work/mnt/step-1"
"$bin/cairnfs" gc "$work/mnt" >/dev/null 2>&1
"$bin/cairnfs" check "$work/mnt"
stop
echo "mounted save: passed"
