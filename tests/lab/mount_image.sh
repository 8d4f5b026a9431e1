# Mounts the first partition of a disk image, and runs a program.  Runs as root in a private mount namespace, so that
# other namespaces don't keep the disk busy.
# Arguments: the image, the folder to mount it at, the program.
set -eu
image=$1 point=$2
shift 2

disk=$(losetup --find --show "$image")
undo() {
    umount "$point" || true
    partx --delete "$disk" || true
    losetup --detach "$disk"
}
trap undo EXIT
# Not every kernel reads the table of partitions by itself.
[ -e "${disk}p1" ] || partx --add "$disk"
mount "${disk}p1" "$point"
"$@"
