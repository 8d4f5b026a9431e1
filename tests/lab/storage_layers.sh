#!/usr/bin/env bash
# Layers and filesystems on the host's real NVMe disk, each tried by the program; run as root on a disposable host:
#
#   unshare --mount bash storage_layers.sh TOOLS PROGRAM
#
# TOOLS holds usr/ and etc/ of the packages that the host lacks; they are laid over the host's in a mount namespace of
# their own, so that the host has none of them afterwards.  Prints what the program says as one JSON object.
set -euo pipefail
tools=$1 program=$2 disk=/dev/nvme0n1
export DM_DISABLE_UDEV=1 LVM_SUPPRESS_FD_WARNINGS=1
exec 3>&1 1>&2
mount --make-rprivate /
mkdir -p /run/storage/{etc,work,srv}
mount -t overlay overlay -o "lowerdir=$tools/usr:/usr" /usr
mount -t overlay overlay -o "lowerdir=$tools/etc:/etc,upperdir=/run/storage/etc,workdir=/run/storage/work" /etc
cd /run/storage/srv

undo() {
    set +e
    exportfs -ua
    umount -l nfs4 nfs3
    rpc.nfsd 0
    kill "$(cat /run/storage/rpcbind 2>/dev/null)" "$(pidof rpc.mountd)" 2>/dev/null
    for name in *; do umount -l "$name"; done
    cryptsetup close lab-crypt
    dmsetup remove lab-cache
    vgchange -an lab
    mdadm --stop /dev/md11 /dev/md12
    wipefs -qaf ${disk}p* $disk
    udevadm settle
} >/dev/null 2>&1
trap undo EXIT

wipefs -qa $disk
{
    echo 'label: gpt'
    for size in 140 170 170 64 64 64 140 64 64 64 16 8; do echo "size=${size}MiB"; done
} | sfdisk -q --wipe always $disk
udevadm settle
mdadm --create /dev/md11 --run --quiet --metadata=1.2 --level=0 --raid-devices=2 ${disk}p2 ${disk}p3
mdadm --create /dev/md12 --run --quiet --metadata=1.2 --level=1 --raid-devices=2 ${disk}p4 ${disk}p5
head -c 32 /dev/urandom >/run/storage/key
cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 ${disk}p6 /run/storage/key
cryptsetup open --key-file /run/storage/key ${disk}p6 lab-crypt
pvcreate -qq -y ${disk}p1
vgcreate -qq -y lab ${disk}p1
lvcreate -qq -y -Wn -Zn -L 100M -n data lab
modprobe dm-cache-smq
sectors=$(blockdev --getsz ${disk}p10)
dmsetup create lab-cache --table "0 $sectors cache ${disk}p12 ${disk}p11 ${disk}p10 512 1 writethrough smq 0"
mkfs.xfs -q -f /dev/md11
mkfs.btrfs -q -f ${disk}p7 >/dev/null
for device in /dev/md12 /dev/mapper/lab-{crypt,data,cache} ${disk}p8 ${disk}p9; do mkfs.ext4 -q -F "$device"; done
mkdir stripe mirror crypt lvm cache btrfs plain journal nfs4 nfs3
mount /dev/md11 stripe
mount /dev/md12 mirror
mount /dev/mapper/lab-crypt crypt
mount /dev/mapper/lab-data lvm
mount /dev/mapper/lab-cache cache
mount ${disk}p7 btrfs
mount ${disk}p8 plain
mount -o data=journal ${disk}p9 journal
mkdir plain/flagged
chattr +j plain/flagged

mkdir -p /var/lib/nfs/{v4recovery,sm} /run/rpcbind
touch /var/lib/nfs/{etab,rmtab} /etc/exports
# Its package's maintainer script would make it.
echo '_rpc:x:64999:65534::/run/rpcbind:/usr/sbin/nologin' >>/etc/passwd
rpcbind
pidof rpcbind >/run/storage/rpcbind
mount -t nfsd nfsd /proc/fs/nfsd 2>/dev/null || true
exportfs -o rw,no_root_squash,insecure,no_subtree_check,fsid=1 "127.0.0.1:$PWD/plain"
rpc.nfsd 2
# No process has older files open, so there is no wait.
echo Y >/proc/fs/nfsd/v4_end_grace
rpc.mountd
mount.nfs "127.0.0.1:$PWD/plain" nfs4 -o vers=4.2,proto=tcp
mount.nfs "127.0.0.1:$PWD/plain" nfs3 -o vers=3,proto=tcp,nolock

python3 "$program" odirect --json stripe mirror crypt lvm cache btrfs plain plain/flagged journal nfs4 nfs3 >&3
