# Unpacks Debian or rpm packages into one folder, without running their scripts.
# Arguments: the folder, a file that may be overwritten, and the packages.
set -eu
root=$1 archive=$2
shift 2

# Older packages have files in /lib and newer ones in /usr/lib; on a merged /usr both are the same place.
for name in bin sbin lib lib32 lib64 libx32; do
    mkdir -p "$root/usr/$name"
    [ -L "$root/$name" ] || ln -s "usr/$name" "$root/$name"
done
for package; do
    if [ "$(od -An -N4 -tx1 "$package")" = " ed ab ee db" ]; then
        rpm2archive --nocompression - <"$package" >"$archive"
    else
        dpkg-deb --fsys-tarfile "$package" >"$archive"
    fi
    tar --extract --file="$archive" --directory="$root" --keep-directory-symlink --no-same-owner \
        --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale --exclude='./boot/vmlinuz*' --exclude='./lib/modules/*/vmlinuz'
done
rm -f "$archive"
