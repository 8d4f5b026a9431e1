"""What a TPM and shim have on record about this boot: PCR 7, the state of Secure Boot, and digests of shim's lists.

PCR 7 is extended with the Secure Boot variables and with every certificate that allowed an image of this boot (TCG PC
Client Platform Firmware Profile, 3.3.4.8).  A value that is read here is evidence for readers who trust this host's
kernel; a quote that the TPM signs would be evidence for others.
"""

from __future__ import annotations

import hashlib
import re
from typing import Dict

from ..rootdir import list_folder, read_text
from .firmware import read_shims, state_of_root

_TPMS = "/sys/class/tpm"
#: Banks from the strongest that firmware usually has.
_BANKS = ("pcr-sha256", "pcr-sha384", "pcr-sha512", "pcr-sha1")
_PCR = re.compile(r"[0-9A-Fa-f]{40,128}\Z")


def measured_boot(root: str = "/") -> Dict[str, str]:
    """``secure_boot`` (a state), ``pcr7`` (hexadecimal) and its ``bank``, ``mok`` and ``mokx`` (sha256 of the lists).

    ``problem``: why there is no PCR 7; then ``pcr7`` is missing.
    """
    answer = {"secure_boot": state_of_root(root)}
    for name, variable in (("mok", "MokListRT"), ("mokx", "MokListXRT")):
        content = read_shims(root, variable)
        if content:
            answer[name] = hashlib.sha256(content).hexdigest()
    tpms = list_folder(root, _TPMS)
    for tpm in tpms:
        for bank in _BANKS:
            value = read_text(root, f"{_TPMS}/{tpm}/{bank}/7").strip()
            # A PCR of zeros or ones was never extended.
            if _PCR.match(value) and len(set(value.lower())) > 1:
                return {**answer, "pcr7": value.lower(), "bank": bank[len("pcr-") :]}
    problem = f"none of {', '.join(tpms)} has a value for PCR 7 that this kernel shows" if tpms else "there is no TPM"
    return {**answer, "problem": problem}
