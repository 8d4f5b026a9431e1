# Runs a program in the root of an image.  Runs as root, process 1 of private mount, process, IPC and UTS namespaces, so
# that its mounts and processes end with it.  Nothing of this machine is in reach of the image's programs but its network.
# Arguments: the root; relative to it the file for the name servers and the policy for services, each an existing file or
# one in a folder that is empty here, or nothing; how many block devices have the image's file systems, and for each its
# path, its number, and its file system's UUID or nothing; the program.
set -eu
root=$1 resolver=$2 policy=$3 count=$4
shift 4

# With the file systems that are mounted below it, such as /boot.
mount --rbind "$root" "$root"
# The top folder as it is now; absolute names lead to this machine until the end.
cd "$root"
mount -t tmpfs -o nosuid,nodev,mode=0755 tmpfs run
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs tmp
# No hardware, modules, firmware or SELinux of this machine: the image is for others.
mount -t tmpfs -o nosuid,nodev,noexec,mode=0755 tmpfs sys
mkdir sys/dev sys/dev/block
mount -t tmpfs -o nosuid,noexec,mode=0755 tmpfs dev
for node in null zero full random urandom tty; do
    : >"dev/$node"
    mount --bind "/dev/$node" "dev/$node"
done
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
mkdir dev/pts dev/shm dev/disk dev/disk/by-uuid
mount -t devpts -o nosuid,noexec,newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs dev/shm
# GRUB reads a partition through its disk, finds its place there in sysfs, and names it by a UUID that it finds in /dev.
while [ "$count" -gt 0 ]; do
    : >"dev/${1##*/}"
    mount --bind "$1" "dev/${1##*/}"
    mkdir "sys/dev/block/$2"
    mount --bind "/sys/dev/block/$2" "sys/dev/block/$2"
    mount -o remount,bind,ro "sys/dev/block/$2"
    [ -z "$3" ] || ln -s "../../${1##*/}" "dev/disk/by-uuid/$3"
    count=$((count - 1))
    shift 3
done
mount -o remount,ro sys

mkdir -m 0755 run/gdsdeploy-image
mkdir -m 1777 run/lock
: >run/gdsdeploy-image/empty
case $resolver in
    '') ;;
    run/* | tmp/* | dev/*) mkdir -p "${resolver%/*}" && cp -L /etc/resolv.conf "$resolver" ;;
    *)
        cp -L /etc/resolv.conf run/gdsdeploy-image/resolv.conf
        mount --bind run/gdsdeploy-image/resolv.conf "$resolver"
        ;;
esac
if [ -n "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >run/gdsdeploy-image/policy-rc.d
    chmod 0755 run/gdsdeploy-image/policy-rc.d
    mount --bind run/gdsdeploy-image/policy-rc.d "$policy"
fi

# What /proc has of this machine's kernel rather than of a process: settings can't be written, the rest can't be read.
mount -t proc -o nosuid,nodev,noexec proc proc
for name in bus fs irq sys; do
    [ ! -d "proc/$name" ] || { mount --bind "proc/$name" "proc/$name" && mount -o remount,bind,ro "proc/$name"; }
done
for name in acpi asound driver scsi; do
    [ ! -d "proc/$name" ] || mount -t tmpfs -o ro,mode=0555 tmpfs "proc/$name"
done
for name in cmdline kallsyms kcore keys modules sysrq-trigger timer_list; do
    [ ! -e "proc/$name" ] || mount --bind run/gdsdeploy-image/empty "proc/$name"
done

hostname localhost
# The image becomes the root of this mount namespace, so leaving the chroot leads nowhere.  Without these rights no
# program mounts, loads a module, makes a device, reboots or sets the clock or the network.  join.py keeps the same ones.
mount --move . /
exec setpriv --inh-caps -all --bounding-set \
    -all,+chown,+dac_override,+fowner,+fsetid,+kill,+net_bind_service,+setfcap,+setgid,+setpcap,+setuid,+sys_chroot \
    chroot . /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive \
    SYSTEMD_OFFLINE=1 "$@"
