# Turns mmdebstrap's root into a host of the RHEL family.  Runs on the controller as root, after base.sh.
# Arguments: root of the base system, the family's major release.  The root has the packages of the first rpm database
# in /run/rpms.
set -eu
root=$1 major=$2 files=$(dirname "$0")/el

# What Debian's packages start after each kernel; kernel-install does it here.
rm -rf "$root/etc/kernel/postinst.d" "$root/etc/kernel/postrm.d" "$root"/usr/lib/kernel/install.d/85-initrd.install
for plugin in 20-grub 50-dracut; do
    install -D -m 0755 "$files/$plugin.install" "$root/usr/lib/kernel/install.d/$plugin.install"
done
install -m 0755 "$files/update-alternatives" "$root/usr/sbin/alternatives"
install -D -m 0600 "$files/grub.cfg" "$root/boot/grub2/grub.cfg"
if [ -d "$root/boot/grub/i386-pc" ]; then
    # A VM host.
    mv "$root/boot/grub/i386-pc" "$root/boot/grub2/"
    rmdir "$root/boot/grub"
    install -m 0600 "$files/grub-vm.cfg" "$root/boot/grub2/grub.cfg"
    install -D -m 0755 "$files/lab-release.dracut" "$root/usr/lib/dracut/modules.d/99lab-release/module-setup.sh"
    install -D -m 0644 "$files/lab-entries" "$root/usr/local/lib/lab/lab-entries"
    for unit in lab-entries.path lab-entries.service lab-entries-last.service; do
        install -m 0644 "$files/$unit" "$root/etc/systemd/system/$unit"
    done
    chroot "$root" systemctl enable --quiet lab-entries.path lab-entries-last.service
fi
mkdir -p "$root/boot/loader/entries" "$root/etc/kernel"
mv "$root/usr/bin/grub-editenv" "$root/usr/bin/grub2-editenv"
chroot "$root" grub2-editenv /boot/grub2/grubenv create
# mkinitrd's answer depends on this machine's devices, which a light host sees; a generic one suits every host.
install -D -m 0644 "$files/dracut.conf" "$root/usr/lib/dracut/dracut.conf.d/01-dist.conf"
[ -e "$root/etc/kernel/cmdline" ] || echo "root=LABEL=root ro" >"$root/etc/kernel/cmdline"

# The family's folders, where Debian has others.
mkdir -p "$root/usr/lib64" "$root/usr/src/kernels" "$root/etc/yum.repos.d" "$root/etc/pki/rpm-gpg"
echo /usr/lib64 >"$root/etc/ld.so.conf.d/lib64.conf"
install -D -m 0644 /dev/null "$root/usr/lib/systemd/system-preset/99-default-disable.preset"
echo "disable *" >"$root/usr/lib/systemd/system-preset/99-default-disable.preset"

# dnf as the family configures it.  The plugin that locks versions is a package of its own there.
install -m 0644 "$files/dnf.conf" "$root/etc/dnf/dnf.conf"
find "$root/etc/dnf/plugins" "$root"/usr/lib/python3/dist-packages/dnf-plugins -mindepth 1 \
    ! -name 'config_manager.py' ! -name 'download.py' ! -name 'builddep.py' ! -name 'needs_restarting.py' -delete
rm -f "$root/etc/dnf/dnf-strict.conf"
# Debian's rpm keeps its database in root's home.
mkdir -p "$root/etc/rpm"
case $major in 9) database=/var/lib/rpm ;; *) database=/usr/lib/sysimage/rpm ;; esac
printf '%%_dbpath %s\n%%_db_backend sqlite\n' "$database" >"$root/etc/rpm/macros.family"
[ "$database" = /var/lib/rpm ] || ln -sfn ../../usr/lib/sysimage/rpm "$root/var/lib/rpm"
mkdir -p "$root$database"
chroot "$root" sh -euc 'rpm --initdb; rpm --install --nodeps --noscripts --nosignature /run/rpms/*.rpm; ldconfig'
rm -r "$root/run/rpms"

# Debian's package managers go last, with all that they know.
info="$root/var/lib/dpkg/info"
for package in dpkg apt libapt-pkg6.0 libapt-pkg7.0 libapt-pkg6.0:amd64 libapt-pkg7.0:amd64 debconf debian-archive-keyring initramfs-tools; do
    [ -e "$info/$package.list" ] || continue
    while read -r path; do
        case $path in */update-alternatives) continue ;; esac
        [ -d "$root$path" ] || rm -f "$root$path"
    done <"$info/$package.list"
done
mv "$root/usr/bin/update-alternatives" "$root/usr/libexec/update-alternatives"
install -m 0755 "$files/update-alternatives" "$root/usr/sbin/update-alternatives"
mkdir -p "$root/var/lib/alternatives"
cp -a "$root/var/lib/dpkg/alternatives/." "$root/var/lib/alternatives/"
rm -rf "$root/var/lib/dpkg" "$root/var/lib/apt" "$root/var/cache/apt" "$root/etc/apt" "$root/etc/dpkg" \
    "$root/usr/share/dpkg" "$root/usr/share/keyrings" "$root/etc/debian_version" "$root/etc/cron.daily" "$root/var/log/apt" \
    "$root/usr/lib/systemd/system"/apt-* "$root/usr/lib/systemd/system"/dpkg-*
