#!/usr/bin/env bash
# Records what a machine with a GPU says, for the tests that replay it:
#
#   tests/evidence/gpu/record.sh OUT FLEET HOST FOLDER FILE
#
# OUT      folder for what is recorded, named after the release of libcufile
# FLEET    fleet file with its lock beside it, whose libcufile is the one in FOLDER
# HOST     the host in it that this machine is
# FOLDER   holds libcufile.so.0
# FILE     a file to write and read, on the storage that is looked at
#
# Needs root, a GPU with its driver, and this checkout's gdsdeploy as a Python package.
set -euo pipefail
out=$1 fleet=$2 host=$3 folder=$4 file=$5
here=$(dirname "$(readlink -f "$0")")
mkdir -p "$out"
export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
gdsdeploy() { python3 -m gdsdeploy "$@"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -c 'import sys; from gdsdeploy.zipapp import hostapp; sys.stdout.buffer.write(hostapp.build())' >"$work/host.pyz"
python3 "$work/host.pyz" evidence --json --mount "$(dirname "$file")" >"$out/evidence.json"
python3 "$work/host.pyz" explain --json "$(dirname "$file")" >"$out/explain.json"
python3 "$work/host.pyz" explain "$(dirname "$file")" >"$out/explain.txt"
python3 "$work/host.pyz" gdscheck --json >"$out/gdscheck.json" || true
gdsdeploy cufile render "$fleet" "$host" --evidence "$out/evidence.json" --output "$out/cufile.json"
PYTHONPATH=$here/../../.. python3 - "$folder/libcufile.so.0" "$out/cufile.json" >"$out/effective.json" <<'PYTHON' || true
import pathlib, sys
from tests.cufile import effective, library
file = pathlib.Path(sys.argv[2])
for result in effective.effective(library.Library(pathlib.Path(sys.argv[1])), {str(file): file.read_bytes()}):
    print(result.to_json())
PYTHON

# One write and read: with the rendered file, and with the fallback forbidden.
for kind in rendered strict; do
    mkdir -p "$work/$kind"
    python3 - "$out/cufile.json" "$work/$kind" "$kind" >"$work/$kind.json" <<'PYTHON'
import json, sys
document = json.loads("\n".join(l for l in open(sys.argv[1]).read().splitlines() if not l.lstrip().startswith("//")))
document.setdefault("logging", {}).update(level="TRACE", dir=sys.argv[2])
if sys.argv[3] == "strict":
    document.setdefault("properties", {})["allow_compat_mode"] = False
print(json.dumps(document))
PYTHON
    status=0
    (cd "$work/$kind" && CUFILE_ENV_PATH_JSON=$work/$kind.json timeout 60 python3 "$here/cufile_io.py" "$file") \
        >"$out/io-$kind.json" 2>"$out/io-$kind.stderr" || status=$?
    echo "$status" >"$out/io-$kind.status"
    cat "$work/$kind"/*.log >"$out/io-$kind.log" || true
done
