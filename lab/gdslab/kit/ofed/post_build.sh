#!/bin/sh
# Runs in DKMS's build folder: keeps what other modules are built against, in the places of DOCA 3.4.
# Arguments: kernel, architecture.
set -e
place=/usr/src/ofa_kernel-dkms/$2/$1
rm -rf "$place"
mkdir -p "$place/include" "/usr/src/ofa_kernel/$2"
cp Module.symvers "$place/"
echo "KVERSION := $1" >"$place/configure.mk.kernel"
ln -sfn "$place" "/usr/src/ofa_kernel/$2/$1"
update-alternatives --install /usr/src/ofa_kernel/default ofa_kernel_headers "$place" 17
