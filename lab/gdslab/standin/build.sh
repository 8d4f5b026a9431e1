# Builds the lab's modules for one kernel in a throw-away copy of a light base system.
# Runs on the controller as root, in private mount and process namespaces.
# Arguments: base system, work folder, folder of sources, kernel release, package version of its headers or "", and
# apt sources beside those of the base system.
set -eu
base=$1 work=$2 sources=$3 release=$4 version=$5
shift 5
root=$work/root

mkdir "$root" "$work/upper" "$work/work"
if ! mount -t overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/work" lab "$root" 2>/dev/null; then
    cp -a --reflink=auto -T "$base" "$root"
fi
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
for node in null zero full random urandom tty; do
    : >"$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs tmpfs "$root/mnt"
cp "$sources"/*.c "$sources/Kbuild" "$root/mnt/"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
for line; do
    echo "$line" >>"$root/etc/apt/sources.list.d/more.list"
done

chroot "$root" env DEBIAN_FRONTEND=noninteractive sh -euc '
    apt-get update
    apt-get install -y --no-install-recommends make "linux-headers-$1${2:+=$2}"
    make -C "/lib/modules/$1/build" M=/mnt modules
    strip --strip-debug /mnt/*.ko
' build "$release" "$version"
cp "$root"/mnt/*.ko "$work/"
