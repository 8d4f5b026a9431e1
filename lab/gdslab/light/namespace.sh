# A light host without systemd-nspawn: sshd, without systemd, in a process namespace on the base system.
# Runs as root, process 1 of the namespace.
# Arguments: root of the host, its name.
set -eu
root=$1 name=$2

hostname "$name"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
for node in null zero full random urandom tty; do
    : >"$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
mkdir "$root/run/sshd" "$root/run/lock"
exec chroot "$root" /usr/sbin/sshd -D -e
