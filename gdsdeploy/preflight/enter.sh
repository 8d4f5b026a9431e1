# Runs a program in a throwaway root of read-only layers.  Runs as root, or as root of a user namespace, in private
# mount and process namespaces, so that its mounts and processes end with it.
# Arguments: a folder, and relative to it the layers, "top:…:bottom", and the work folder with the folder that is to
# be /build; further mount options; the program.
set -eu
# Relative names: an absolute path may contain a colon or a comma, which are special in mount options.
cd "$1"
lower=$2 work=$3 options=$4
shift 4
root=$work/root

mkdir -p "$root" "$work/upper" "$work/work"
if ! mount -t overlay -o "lowerdir=$lower,upperdir=$work/upper,workdir=$work/work$options" preflight "$root" \
    2>"$work/overlay.log"; then
    if [ ! -e "$work/copied" ]; then
        rest=$lower
        while [ -n "$rest" ]; do
            layer=${rest##*:}
            cp -a --reflink=auto -T "$layer" "$root"
            [ "$rest" = "$layer" ] && rest= || rest=${rest%:*}
        done
        : >"$work/copied"
    fi
fi
mkdir -p "$root/proc" "$root/dev" "$root/tmp" "$root/build" "$root/root"
chmod 1777 "$root/tmp"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
for node in null zero full random urandom; do
    : >"$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
ln -s /proc/self/fd "$root/dev/fd"
mount --bind "$work/build" "$root/build"
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C chroot "$root" "$@"
