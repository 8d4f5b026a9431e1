# Turns mmdebstrap's root into a base system.  Runs on the controller as root, from mmdebstrap's customize hook.
# Arguments: root of the base system, folder of files to copy into it, kind (vm or light), user, mount point.
set -eu
root=$1 files=$2 kind=$3 user=$4 nvme=$5

rm -f "$root/etc/apt/sources.list" "$root"/etc/apt/sources.list.d/0000* "$root/etc/apt/apt.conf.d/99mmdebstrap"
rm -f "$root/etc/resolv.conf" "$root"/etc/ssh/ssh_host_*
cp -r "$files/." "$root/"
chmod 0440 "$root/etc/sudoers.d/lab"

chroot "$root" useradd --create-home --shell /bin/bash --groups sudo "$user"
install -d -m 0755 "$root/home/$user/.ssh"
# Empty, not absent: each host generates its id without systemd's first-boot questions.
: >"$root/etc/machine-id"
rm -f "$root/var/lib/dbus/machine-id"

# With these times, systemd doesn't rebuild its caches on first boot.
touch "$root/etc/.updated" "$root/var/.updated"

# Automatic updates and cleaning would make rehearsals differ.
chroot "$root" systemctl mask --quiet apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    fstrim.timer e2scrub_all.timer e2scrub_reap.service

if [ "$kind" = light ]; then
    # These would act on the controller's devices, clock and network, which a light host shares.
    chroot "$root" systemctl mask --quiet systemd-networkd.service systemd-networkd.socket \
        systemd-udevd.service systemd-udev-trigger.service systemd-modules-load.service systemd-sysctl.service \
        systemd-timesyncd.service systemd-logind.service console-getty.service getty.target
    exit 0
fi

# Only systems whose kernels are Debian's under other names have this hook.
hook="$root/etc/initramfs-tools/hooks/lab-release"
[ ! -e "$hook" ] || chmod 0755 "$hook"
install -d "$root$nvme" "$root/boot/grub/i386-pc"
chroot "$root" systemctl enable --quiet lab-network.service lab-seed.service lab-rxe.service
# Nothing uses these, and each costs an emulated machine seconds of every boot.
chroot "$root" systemctl mask --quiet getty@tty1.service serial-getty@ttyS0.service grub-common.service \
    systemd-binfmt.service systemd-pstore.service dev-hugepages.mount dev-mqueue.mount sys-fs-fuse-connections.mount \
    modprobe@drm.service modprobe@efi_pstore.service modprobe@fuse.service
cp "$root"/usr/lib/grub/i386-pc/*.mod "$root"/usr/lib/grub/i386-pc/*.lst "$root/boot/grub/i386-pc/"
