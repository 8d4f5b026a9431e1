# Gives a VM base system its initramfs and GRUB, and makes the disk's first partition and boot sectors from it.
# Runs on the controller as root in private mount and process namespaces; no block device is needed.
# Arguments: root of the base system, output folder, partition size in KiB, partition offset in bytes, root UUID.
# A root of the RHEL family has the packages of its kernel, and others to install, in /run/packages.
set -eu
root=$1 out=$2 size=$3 offset=$4 uuid=$5

mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
for node in null zero full random urandom tty; do
    : >"$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
ln -s /proc/self/fd "$root/dev/fd"
# grub-mkconfig writes root=UUID=… only for a disk that it can see by that name.
mkdir -p "$root/dev/disk/by-uuid"
: >"$root/dev/vda1"
ln -s ../../vda1 "$root/dev/disk/by-uuid/$uuid"

if [ -d "$root/run/packages" ]; then
    grub=grub2
    # Kernels of an image have the image's id in their entries; each host generates its own on first boot.
    echo 0000000000000000000000000000001a >"$root/etc/machine-id"
    # Kernels first: once DKMS is there, it refuses one without headers, and kernel-install then makes no initramfs.
    chroot "$root" sh -euc '
        cd /run/packages
        rpm --install --nosignature kernel*.rpm
        rm kernel*.rpm
        set -- *.rpm
        [ ! -e "$1" ] || rpm --install --nosignature "$@"
        sh /usr/local/lib/lab/lab-entries'
    # A scriptlet that fails is only a warning.
    for kernel in "$root"/boot/vmlinuz-*; do
        test -s "$root/boot/initramfs-${kernel##*/vmlinuz-}.img"
    done
    : >"$root/etc/machine-id"
    rm -r "$root/run/packages"
    grep -q "root=UUID=$uuid" "$root/boot/grub2/entries.cfg"
else
    grub=grub
    # grub-probe reads block devices; this system's doesn't exist yet, so a script answers instead.
    install -m 0755 "$(dirname "$0")/grub-probe" "$root/dev/grub-probe"
    mount --bind "$root/dev/grub-probe" "$root/usr/sbin/grub-probe"
    # The kernel was installed before the settings that make its initramfs a third as large.
    chroot "$root" env GRUB_PROBE_UUID="$uuid" sh -euc '
        for kernel in /lib/modules/*; do update-initramfs -c -k "${kernel##*/}"; done
        grub-mkconfig -o /boot/grub/grub.cfg'
    umount "$root/usr/sbin/grub-probe"
    grep -q "root=UUID=$uuid" "$root/boot/grub/grub.cfg"
fi

# Where apt has read the archive, an emulated machine would take long to index it.
[ -z "$(ls "$root"/var/lib/apt/lists/*_Packages 2>/dev/null)" ] || chroot "$root" apt-cache gencaches

# Not through the BIOS, which takes an emulated machine twice the processor time.
chroot "$root" grub-mkimage --format=i386-pc --output="/boot/$grub/i386-pc/core.img" \
    --prefix="(ahci0,msdos1)/boot/$grub" ahci part_msdos ext2 normal
cp "$root/usr/lib/grub/i386-pc/boot.img" "$root/boot/$grub/i386-pc/core.img" "$out/"
cp "$(printf '%s\n' "$root"/boot/vmlinuz-* | sort -V | tail -n 1)" "$out/vmlinuz"

for mounted in dev/null dev/zero dev/full dev/random dev/urandom dev/tty dev sys proc; do
    umount "$root/$mounted"
done
# GRUB of Debian 12 and 13 cannot read the two newer features.
mke2fs -q -t ext4 -O '^metadata_csum_seed,^orphan_file' -U "$uuid" -L root \
    -E "offset=$offset,nodiscard" -d "$root" "$out/disk.raw" "${size}k"
