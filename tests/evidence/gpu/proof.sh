#!/usr/bin/env bash
# Records on a machine with a GPU what came of direct I/O and of a read through cuFile, for the tests that replay it:
#
#   tests/evidence/gpu/proof.sh OUT EXPECTATION FOLDER PROGRAM
#
# OUT          folder for what is recorded, named after the release of libcufile
# EXPECTATION  what a host is expected to be; the mounts in it are tried
# FOLDER       holds libcufile.so.0
# PROGRAM      the program that runs on hosts, gdsdeploy-host.pyz
#
# Needs root and a GPU with its driver.
set -euo pipefail
out=$1 expectation=$2 folder=$3 program=$4
mkdir -p "$out"
export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# Its exit status says that the host is not as expected, and it need not be.
python3 "$program" validate --json --with-evidence --expectation "$expectation" >"$out/validate.json" || true
