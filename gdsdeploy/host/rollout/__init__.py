"""What a rollout runs on a host: ``gdsdeploy-host.pyz rollout COMMAND --json``; see docs/rollout-host.md.

Shapes (sizes in bytes, times in seconds unless said otherwise):

    snapshot  {"version", "when", "host", "boot_id", "kernel", "lock_digest",
               "boot": {"default", "default_entry", "next", "next_entry", "problem"},
               "manager": "dpkg" | "rpm" | "", "packages": {name: {"version", "held"}},
               "provision": {"installed": [name], "held": [name], "removed": [name]},
               "kernels": {release: {"files": {path below its folder: sha256}, "chosen": {module: path}}},
               "files": {path: {"sha256", "mode", "uid", "gid"} | null}}
              A version is "" where the package is not installed; of several architectures it is the host's own.
    compare   {"same", "differences": [{"what", "name", "was", "is", "says"}]}
              what: package, hold, boot, kernel, module, chosen, file, provision.
    status    {"version", "boot_id", "kernel", "lock_digest", "uptime",
               "boot": as above, "once": {"state", "kernel", "default", "boot_id", "when", "possible", "problem"},
               "packages": {"manager", "broken": [{"package", "state"}], "interrupted", "locks": [{"path", "pid",
               "program"}]},
               "gpu": {"open": [{"pid", "program", "files"}], "modules": [{"name", "references", "users"}],
               "mounts": [{"module", "target", "source", "fstype"}]},
               "space": {folder: {"bytes", "inodes", "mount"}},
               "apply": {"run", "who", "works"}: who keeps the host for a run, and whether a call of it works now,
               "reboot": {"ordered", "rollout", "when", "blocked": [words]}}
              once.state: "none"; "armed" (the next boot is of once.kernel); "withdrawn" (it was, and no longer is);
              "booted" (this boot is of it); "fell back" (another kernel runs, although it was to be booted once).
              inodes is -1 where the filesystem has no such limit.
    keep      {"changed", "kernel", "archive", "from": "kept" | "provision" | "installed" | "packed" | "", "modules"}
              archive is "" where there is nothing of NVIDIA's; to put it back: kmod install --kernel REL ARCHIVE.
    forget    {"changed", "folder"}
    space     {"fits", "filesystems": [{"mount", "folders", "bytes", "inodes", "fits", "says"}]}; 30 if it does not
              the need is a JSON object: folder of status.space → bytes, or {"bytes", "inodes"}.
    once      {"changed", "once", "kernel", "entry", "default", "boot_id"}
              once is false where the kernel is the default, so that nothing was to be armed.
    reboot    {"did": "ordered" | "already ordered" | "already rebooted", "boot_id": of this boot, "kernel"}
    reload    {"did": "reloaded" | "nothing to do", "boot_id", "modules", "services"}; with --check
              {"safe", "needed", "reasons": [words], "boot_id", "modules", "services", "files": {module: file}}
              and "error" beside them, and 30, where it is not safe; "needed" false: there is nothing to exchange
              modules and services are in the order in which they go; they come back in the reverse order.

Kinds of errors: "usage" (ends with 2), "io" (a file: no space, read-only, no rights), "host" (what boot, kmod or the
package manager say), "packages" (the package manager cannot be asked), of reboot "packages-busy", "packages-broken",
"inhibited", "systemd"; of once "no-one-shot", "grub"; of reload "boot", "unsafe" (nothing was done), "reload" (what was
loaded is loaded again), "reload-lost" (only a reboot helps); of compare "snapshot".
"""
